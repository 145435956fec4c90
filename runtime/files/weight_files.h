// The weights in a Hugging Face folder: model.safetensors, or several such files and
// model.safetensors.index.json, which says which file has which tensor. A path may name the folder,
// one safetensors file of any name, or an index.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/files/safetensors.h"
#include "schema/base/status.h"

namespace pp {

class WeightFiles {
 public:
  // Invalid: there are none, or one of them is not what the index says.
  static Result<WeightFiles> Open(const std::string& path);
  // Of all of them (see digest.h).
  static Result<uint64_t> Digest(const std::string& path);
  // Every file that Open reads, as far as they can be determined.
  static std::vector<std::string> Paths(const std::string& path);
  // The folder where they are.
  static std::string Folder(const std::string& path);

  bool Has(const std::string& name) const {
    return whole_ ? whole_->Find(name) != nullptr : file_of_.contains(name);
  }
  // What is read, for errors about what is missing.
  const std::string& path() const { return path_; }
  // As Safetensors::ReadFloats. REQUIRES: Has(name).
  Status ReadFloats(const std::string& name, const std::vector<int64_t>& shape,
                    const Safetensors::Block& block, float* out);

 private:
  std::string path_;
  std::map<std::string, Safetensors> files_;     // by path
  Safetensors* whole_ = nullptr;                 // the only file, if there is no index
  std::map<std::string, Safetensors*> file_of_;  // else by tensor
};

}  // namespace pp
