// Where other trainers cut a model into stages, read and written.
//
//   Megatron-LM, --pipeline-model-parallel-layout       torchtitan, module_fqns_per_model_part
//   Et*2|(t|)*2,tL                                      [["tok_embeddings","layers.0","layers.1"],
//                                                        ["layers.2"],["layers.3"],
//                                                        ["layers.4","norm","lm_head"]]
//
//   E, t, L   the embedding, a layer, the final norm with head and loss
//   |         the next stage begins: stage s is on device s mod D
//   x*n       n times one of these; (...)*n n times what stands between, which has no parentheses
//   ,         nothing
//
// As pipeline_parallel_layer_layout.py of Megatron-LM's core reads it, but that what it accepts by
// accident is refused: (...)*2*3, and digits between parentheses that end a number before them. Its
// lists of "embedding", "decoder" and "loss" are read as those of torchtitan.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"

namespace pp {

struct Cuts {
  std::string scheme;         // 1f1b, or interleaved if a device has several stages
  int stages_per_device = 1;  // V
  std::vector<int> layers_per_stage;

  int devices() const { return static_cast<int>(layers_per_stage.size()) / stages_per_device; }
};

// The cuts of a model of so many layers. `devices`, of one pipeline: 0 if unknown, and then each
// stage has one. The first stage may have the embedding alone, the last one the head; each between
// them has a layer. Takes memory and time by the length of the text and the number of layers,
// whatever the text repeats. The error names no file or option (Status::In).
Result<Cuts> ReadCuts(std::string_view text, int layers, int devices);

// A user may give a layout as text, or a file of it, whose name is known by a '/' or a '.', which
// no layout of Megatron-LM has; a list begins with '['.
bool IsCutsFile(std::string_view given);
// The text, of the file if it is one.
Result<std::string> CutsText(const std::string& given);

// What ReadCuts reads.
std::string MegatronCuts(const std::vector<int>& layers_per_stage);
std::string TorchtitanCuts(const std::vector<int>& layers_per_stage);

}  // namespace pp
