#include "kernels/attention.h"

#include "kernels/attention_layout.h"

namespace pp::kernels::cpu {

size_t AttentionScratchBytes(const AttentionShape& shape) {
  return LayOutAttention(shape).total * sizeof(float);
}

}  // namespace pp::kernels::cpu
