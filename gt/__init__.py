"""GT, a tensor service: programs say what to compute, a YAML file says where."""
