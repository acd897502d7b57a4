"""Options: how command lines, settings files, and names become the settings of a run, and how help is made of them."""
