"""How gradients become the next parameters: parameter servers, all-reduce, a central store, and local SGD.

Each of these four is a package here. `kind` defines what the settings and the command line need to know of an exchange,
and `registry` finds one by its name. Read `interface` first, then `parameter_server`. Nothing here may import
TensorFlow, an emulator, or any other package of ddrl but `kernels`.
"""
