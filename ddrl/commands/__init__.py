"""The subcommands of `ddrl`: each module has main(argv) -> exit status.

Read `train` first. Every module must load without TensorFlow, MPI, and emulators, so that --help answers at once; its
functions import what takes long.
"""
