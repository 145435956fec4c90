#include "kernels/attention.h"

#include "kernels/attention_layout.h"

namespace pp::kernels::cpu {

template <typename N>
size_t AttentionScratchBytes(const AttentionShape& shape) {
  return LayOutAttention<N>(shape).total * sizeof(float);
}
#define PP_OF(N, ...) template size_t AttentionScratchBytes<N>(const AttentionShape& shape);
PP_ACTIVATIONS(PP_OF)

}  // namespace pp::kernels::cpu
