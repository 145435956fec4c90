// Low-rank adapters (Hu et al., "LoRA", 2021): the model stays as it is, and each chosen Linear
// gets two small matrices, which alone are trained:
//
//   out = in W + b + alpha / r (in A^T) B^T          A [r, in], B [out, r]
//
// An adapter belongs to a name among a Linear's pieces: of [queries | keys | values] each may have
// its own; GPT-2's c_attn, which is one name, has one for all three. Names and shapes are those of
// Hugging Face's peft, and so is what a target matches: a name that it equals, or that ends with
// "." and it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/operators.h"

namespace pp {

struct Lora {
  int rank = 0;  // r; 0: all parameters are trained, and there are no adapters
  double alpha = 0;
  std::vector<std::string> targets;  // sorted, each once; or kAllLinear alone

  bool given() const { return rank > 0; }
  bool operator==(const Lora&) const = default;
};
inline constexpr int kMostRank = 4096;
// All Linears of the layers.
inline constexpr std::string_view kAllLinear = "all-linear";

// "r=16,alpha=32,q_proj,v_proj", and back; empty: not given. Targets that are missing are the
// family's (WithTargets in job.h).
Status ReadLora(std::string_view text, Lora* lora);
std::string TextOf(const Lora& lora);

// The short names of the Linears in the layers: "q_proj, k_proj", each once.
std::vector<std::string> LinearNames(const ModelTable& table);
// What LinearNames says of the Linears that have an adapter, for kAllLinear, or the targets.
std::vector<std::string> TargetNames(const Lora& lora, const ModelTable& table);

// Invalid: a rank or alpha out of range, no targets, or one that no Linear of the layers matches.
Status CheckLora(const Lora& lora, const ModelTable& table);
// Freezes all parameters and adds the adapters.
void AddLora(const Lora& lora, ModelTable* table);

}  // namespace pp
