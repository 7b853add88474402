"""
Export a run's best model, or its last.

$ python export.py out/demo --hf exported/       # config.json, model.safetensors and the tokenizer, for transformers
"""

import sys
from pathlib import Path

from checkpoints.checkpoint import at_checkpoint, from_checkpoint, load_checkpoint
from checkpoints.huggingface import save_hf
from common.cli import Parser
from corpus.tokenizer import Tokenizer


def main():
    parser = Parser(__doc__)
    parser.add_argument("model", help="a run (or checkpoint)")
    parser.add_shared("checkpoint")
    parser.add_argument("--hf", type=Path, required=True, metavar="DIR", help="write files for transformers there")
    args = parser.parse_args()
    try:
        checkpoint = load_checkpoint(at_checkpoint(args.model, args.checkpoint))
        if (kind := checkpoint.get("model_class", "gptneo")) != "gptneo":
            raise ValueError(f"{args.model}: transformers has no model like the {kind}")
        save_hf(from_checkpoint(checkpoint), args.hf, Tokenizer(checkpoint["gpt2_ids"]))
    except (ValueError, OSError) as error:
        sys.exit(f"export.py: {error}")
    print(f"wrote {args.hf}; load it with transformers.AutoModelForCausalLM.from_pretrained('{args.hf}')")


if __name__ == "__main__":
    main()
