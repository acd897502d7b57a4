"""How gradients become the next parameters: parameter servers, all-reduce, a central store, and local SGD.

Each of these four is a package here; `kind` has what settings and command line ask of them, and `registry` finds one by
its name. Read `interface` first, then `parameter_server`. Nothing here may import TensorFlow or an emulator, or any
other package of ddrl but `kernels`.
"""
