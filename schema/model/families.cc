#include "schema/model/families.h"

namespace pp {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"gpt2", "GPT2LMHeadModel", Gpt2Keys, Gpt2Table},
    {"llama", "LlamaForCausalLM", LlamaKeys, LlamaTable},
};

}  // namespace

std::span<const ModelFamily> Families() { return kFamilies; }

const ModelFamily* FindFamily(std::string_view model_type) {
  for (const ModelFamily& family : kFamilies)
    if (model_type == family.model_type) return &family;
  return nullptr;
}

}  // namespace pp
