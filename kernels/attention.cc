#include "kernels/attention.h"

#include "kernels/attention_layout.h"

namespace pp::kernels::cpu {

size_t AttentionScratchBytes(const AttentionShape& shape, int threads) {
  return static_cast<size_t>(threads) * LayOutAttention(shape).total * sizeof(float);
}

}  // namespace pp::kernels::cpu
