// The weights in a Hugging Face folder: model.safetensors, or several such files and
// model.safetensors.index.json, which lists them. A path may name the folder, one safetensors file
// of any name, or an index.
//
// The tensors are those that the files have, as for transformers: an index may list some that no
// file has, and leave out some that a file has.
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
  // Invalid: there are none, or one of them is none.
  static Result<WeightFiles> Open(const std::string& path);
  // Of all of them (see digest.h).
  static Result<uint64_t> Digest(const std::string& path);
  // Every file that Open reads, as far as they can be determined.
  static std::vector<std::string> Paths(const std::string& path);
  // The folder where they are.
  static std::string Folder(const std::string& path);

  bool Has(const std::string& name) const { return file_of_.contains(name); }
  // All tensors, sorted.
  std::vector<std::string> Names() const;
  // Those that two files have, of which the index's is read; and those that only the index lists.
  const std::vector<std::string>& twice() const { return twice_; }
  const std::vector<std::string>& absent() const { return absent_; }
  // What is read, for errors about what is missing.
  const std::string& path() const { return path_; }
  // As Safetensors::ReadFloats. REQUIRES: Has(name).
  Status ReadFloats(const std::string& name, const std::vector<int64_t>& shape,
                    const Safetensors::Block& block, float* out);

 private:
  Status OpenFile(const std::string& path);

  std::string path_;
  std::map<std::string, Safetensors> files_;     // by path
  std::map<std::string, Safetensors*> file_of_;  // by tensor
  std::vector<std::string> twice_, absent_;
};

}  // namespace pp
