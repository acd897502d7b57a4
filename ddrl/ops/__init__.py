"""Math on tensors and arrays: returns, V-trace, losses, distributions of actions and draws from them, norms.

Read `returns` first. The functions see no process, queue, file, logger, or clock. Nothing here may import another
package of ddrl (`returns` loads its compiled loops from `kernels` when it first needs them), or a heavy library other
than TensorFlow.
"""
