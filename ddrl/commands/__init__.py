"""The subcommands of `ddrl`: each module has main(argv) -> exit status."""
