"""Where an artefact came from: the record inside a wheel, bills of materials, SLSA statements."""
