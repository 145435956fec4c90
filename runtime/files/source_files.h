// The small files beside the weights of a Hugging Face folder, which a training leaves as they are:
// config.json, the tokenizer, the settings of generation. A run reads them before its first step,
// keeps them in its checkpoints, and writes them with the model that it exports.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/dtype.h"

namespace pp {

struct SourceFile {
  std::string name, bytes;
};
using SourceFiles = std::vector<SourceFile>;  // config.json first, if there is one
inline constexpr char kConfigName[] = "config.json";

bool IsSourceFile(std::string_view name);
int64_t TotalBytes(const SourceFiles& files);

// Names of those in a folder, config.json first; there they may have a prefix, too.
std::vector<std::string> SourceNames(const std::string& folder, const std::string& prefix = "");
// Their bytes, as far as the folder says.
int64_t SourceBytes(const std::string& folder, const std::string& prefix = "");

// Those of a folder. *notes: what of it cannot be kept, as a file of more than 64 MiB. Invalid:
// config.json cannot be read, or is none.
Result<SourceFiles> ReadSource(const std::string& folder, std::vector<std::string>* notes);

// The config.json of a model that was trained from one with this config.json: all of it as it was,
// but what the tensors are now, `dtype` and not quantized, and that the model has its head. That is
// right because the source's weights are the plan's model's (CheckSameWeights): what the two may
// differ in, dropout and initialisation, is a matter of the next training. REQUIRES: `config` is a
// JSON object with something in it.
std::string ExportedConfig(std::string_view config, std::string_view architecture, Dtype dtype);

// One of a checkpoint's: its name there, and what the manifest says of it.
std::string SourcePartName(const std::string& name);
bool IsSourcePart(std::string_view name);
struct SourcePart {
  std::string name;  // of the file
  int64_t bytes = 0;
  uint64_t sum = 0;  // XXH3
};
// Failed: the disk is full or broken.
Result<std::vector<SourcePart>> WriteSourceParts(const std::string& folder,
                                                 const SourceFiles& files);
// Invalid: one is missing or damaged. Failed: it cannot be read.
Result<SourceFiles> ReadSourceParts(const std::string& folder,
                                    const std::vector<SourcePart>& parts);

}  // namespace pp
