"""Your own texts and their numbers: compare losses, train with one, and predict new texts with intervals. Takes a minute."""

from typing import Any

from numerate.lab import compare, predict, train

# 1,128 molecules as text, and how well they dissolve. Your own: a CSV, JSON or Excel file, a pandas frame, or a list of dicts.
DATA, TARGET = "esol", "logSolubility"
# For a quick look. For a real answer leave it out, and give compare budget="5m" or more.
SIZE: dict[str, Any] = {"model": "tiny", "steps": 40, "eval_examples": 40}

comparison = compare(data=DATA, target=TARGET, losses="soft", seeds=2, processes=1, out="runs/own_texts", **SIZE)
print(comparison.answer)
print(f"report: {comparison.path}")

trained = train(data=DATA, target=TARGET, loss="soft", out="runs/own_texts_soft", **SIZE)
print(f"mean absolute error on test rows: {trained.figures['interpolate']['absolute_error']:.2f}")

molecules = [{"smiles": "CCO"}, {"smiles": "CCCCCCCCCC"}]  # ethanol and decane
predicted = predict(trained.model, molecules, "runs/own_texts.csv", explain=2, overwrite=True)
for row in predicted.explained:
    print(f"{row.prompt}: {row.prediction.value}, 90 % in {row.prediction.low} to {row.prediction.high}")
