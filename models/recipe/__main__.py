"""The whole recipe on one GPU: `python -m models.recipe --out models/tiny`.

Tokenizer, model, draft layer, one process after the other; in 9 minutes by default. A GPU that is
slower makes fewer steps in that time.
"""

import argparse
import subprocess
import sys

STAGES = ("tokenizer", "train", "train_mtp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="models/tiny")
    parser.add_argument("--minutes", type=float, default=6.6, help="for the model, at most")
    parser.add_argument("--mtp-minutes", type=float, default=1.4, help="for the draft layer")
    args = parser.parse_args()
    limits = {
        "tokenizer": [],
        "train": ["--max-minutes", str(args.minutes)],
        "train_mtp": ["--max-minutes", str(args.mtp_minutes)],
    }
    for stage in STAGES:
        print(f"{stage} begins", flush=True)
        command = [sys.executable, "-m", f"models.recipe.{stage}", "--out", args.out]
        subprocess.run(command + limits[stage], check=True)


if __name__ == "__main__":
    main()
