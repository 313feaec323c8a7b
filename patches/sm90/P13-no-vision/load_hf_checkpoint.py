"""Zeros in place of what construction left there; tensors that the checkpoint has are loaded over them."""


def load_hf_checkpoint(gpt, *, hf_dir, hf_coverage):
    for name, parameter in gpt.named_parameters():
        if name.startswith("vision_pipeline.") or ".params.image_" in name:
            parameter.data.zero_()
