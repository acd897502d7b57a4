"""Starting a run and seeing it through: on this machine under mpirun, or as one rank of a cluster's job."""
