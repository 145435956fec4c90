#include "kernels/attention.h"

#include "kernels/attention_layout.h"

namespace pp::kernels::cpu {

template <typename N>
size_t AttentionScratchBytes(const AttentionShape& shape) {
  return LayOutAttention<N>(shape).total * sizeof(float);
}
template size_t AttentionScratchBytes<float>(const AttentionShape& shape);
template size_t AttentionScratchBytes<BFloat16>(const AttentionShape& shape);

}  // namespace pp::kernels::cpu
