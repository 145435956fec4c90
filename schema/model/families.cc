#include "schema/model/families.h"

namespace pp {
namespace {

constexpr ModelFamily kFamilies[] = {
    {"gpt2", "GPT2LMHeadModel", Gpt2Keys, Gpt2Table, kGpt2Aliases, "c_attn"},
    {"llama", "LlamaForCausalLM", LlamaKeys, LlamaTable},
    {"mistral", "MistralForCausalLM", MistralKeys, MistralTable},
    {"qwen2", "Qwen2ForCausalLM", Qwen2Keys, Qwen2Table},
    {"qwen3", "Qwen3ForCausalLM", Qwen3Keys, Qwen3Table},
};

}  // namespace

std::span<const ModelFamily> Families() { return kFamilies; }

const ModelFamily* FindFamily(std::string_view model_type) {
  for (const ModelFamily& family : kFamilies)
    if (model_type == family.model_type) return &family;
  return nullptr;
}

}  // namespace pp
