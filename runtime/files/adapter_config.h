// A low-rank adapter's files as Hugging Face's peft writes and reads them: adapter_config.json and
// adapter_model.safetensors.
#pragma once

#include <string>
#include <vector>

#include "schema/base/status.h"
#include "schema/model/job.h"

namespace pp {

inline constexpr char kAdapterConfigName[] = "adapter_config.json";
inline constexpr char kAdapterName[] = "adapter_model";  // .safetensors
// Of a tensor's name there, before its name in the model.
inline constexpr char kAdapterPrefix[] = "base_model.model.";

// The file of tensors in a folder.
inline std::string AdapterPath(const std::string& folder) {
  return folder + "/" + kAdapterName + ".safetensors";
}

// adapter_config.json of the job's adapters. REQUIRES: it has some.
std::string AdapterConfig(const Job& job);

// Invalid: the folder's adapter_config.json cannot be read, or has other adapters than the job, or
// something that a plan cannot have; the error names the key. *notes: what is not used.
Status CheckAdapterConfig(const std::string& folder, const Job& job,
                          std::vector<std::string>* notes);

}  // namespace pp
