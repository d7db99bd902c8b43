"""Compressors that users write in Python."""

import torch


class Compressor:
    """A method of compression. Derive from it, and pass an object to ``netsum.torch.compress(model, MyMethod())``.

    additivity: how the payloads of all ranks may be added: "linear" (numbers that may be added), "integer" (int32 that may
        be added), "sparse" (as "linear"; as long as the tensor, and mostly zero), or "none" (bytes that mean nothing when they are
        added: every rank gets those of all ranks, and decompresses each).
    biased: the expected value of what arrives is not what was compressed. Otherwise, no memory is kept.
    needs_memory: training does not converge unless what was not sent is kept for later steps.
    name: ranks compare it, so it must contain all that they must have in common.

    Methods must be functions of their arguments: nothing that they do may depend on earlier calls. Random numbers come from a
    generator that is seeded by the context. A value that is not finite must make the result not finite somewhere.
    ``netsum.torch.check_compressor()`` tests all of this. A context has `tensor`, a number of the parameter, and `step`, `rank`,
    `ranks` and `rows`.
    """

    additivity = "linear"
    biased = True
    needs_memory = True

    @property
    def name(self):
        return type(self).__name__

    def shape(self, count, context):
        """Returns the type (float32, bfloat16, float16; int32 for "integer", uint8 for "none") and number of elements of a tensor's payload."""
        return torch.float32, count

    def compress(self, values, payload, context):
        """Writes the payload of the values, a float32 tensor of one dimension, which must not be changed."""
        raise NotImplementedError(f"{self.name} must define compress(self, values, payload, context)")

    def decompress(self, payload, contributions, out, context):
        """Writes the mean that the ranks have sent: `payload` is the sum of those of `contributions` ranks, or of one."""
        raise NotImplementedError(f"{self.name} must define decompress(self, payload, contributions, out, context)")
