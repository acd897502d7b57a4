"""Jobs of Slurm, from the side of whoever submits them: scripts, sbatch, the queue, and what is noted of jobs.

`job.sh` is what the jobs themselves run.
"""
