"""The models and their command lines: one file and one YAML for each, over defaults.yaml."""
