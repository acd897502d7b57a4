"""`ddrl doctor`: would training work here?

Every rank gathers facts (`facts`, `probe`, `talk`), pure functions judge them (`checks`), and one report tells what is
wrong and what to do (`report`). Read `examination` first, which leads through all of this. All modules but `gpus` and
`talk` must load without TensorFlow and MPI, which may be just what does not work.
"""
