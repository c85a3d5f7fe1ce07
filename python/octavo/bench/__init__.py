"""GPU benchmark: Octavo's recipes and their peers in one run. `python -m octavo.bench --help`.

What is measured, and how:

- *kernel*: attention alone, on operands that are quantized already: `Plan.attend`, and the peers' calls.
  Where a 16-bit recipe reads q, k and v as they are, nothing is quantized and this is the end to end.
- *end to end*: `octavo.attention`, from 16-bit q, k, v to the output, quantization and scratch memory
  included. Peers that come without a quantizer have none.
- Both are launches captured in a CUDA graph, as many as take a millisecond, timed by CUDA events around a
  replay and divided by their number: no host time, caches as warm as repeated calls leave them. *call* is the
  end to end again as plain Python calls.
- Contenders take turns within every repeat, so that a drifting clock and a warming GPU meet all of them.
- The SM clock is read by a kernel that counts cycles right after each batch; FLOP/clk/SM uses it. NVML's
  clock and power, read while batches run, stand beside it.
- Errors are of a fresh set of inputs, the output filled with NaN before, against float64 on sampled rows.
"""
