"""Jobs of Slurm, from the side of whoever submits them: scripts, sbatch, the queue, and what is noted of jobs.

Read `site` and `script` first, then `submission`; `job.sh` is what the jobs themselves run. Nothing here may import
`cluster` or `ddrl.roles`, or anything heavy, such as TensorFlow, when it is loaded.
"""
