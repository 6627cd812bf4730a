"""Who learns: the objectives, the packing of samples into token trees, and the DeepSpeed learner group."""
