"""Fine-tuning of pretrained networks: the study behind `docs/finetune.md`."""
