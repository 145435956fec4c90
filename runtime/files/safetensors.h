// Reader of safetensors files, the format of Hugging Face's weights:
//
//   u64 little-endian length of the header | header, JSON | data
//   header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...}
//
// with offsets from the end of the header, elements row-major and little-endian. The header is
// checked completely before anything is read: sizes against shapes, no overlaps, no holes, no
// duplicate names, and the last byte of data is the last of the file. Of a dtype that is not known
// here, the size is not checked, and only reading the tensor is an error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

// What is right instead of another format's file.
inline constexpr char kHowToConvert[] =
    "safetensors, as transformers' from_pretrained and then save_pretrained write";

struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // bytes after the header
};

class Safetensors {
 public:
  static Result<Safetensors> Open(const std::string& path);

  const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  // Null if there is none.
  const SafetensorsEntry* Find(const std::string& name) const;

  // Reads a tensor that must have this shape and be F32, or I32 for the second.
  Status ReadFloats(const std::string& name, const std::vector<int64_t>& shape, float* out);
  // A block of its rows and columns; the tensor can be BF16 or F16, too; a vector has one row.
  // REQUIRES: it is inside the shape.
  struct Block {
    int64_t row = 0, col = 0, rows = 0, cols = 0;
    int64_t row_stride = 0;  // floats from one row to the next, in `out`
  };
  Status ReadFloats(const std::string& name, const std::vector<int64_t>& shape, const Block& block,
                    float* out);
  Status ReadInts(const std::string& name, const std::vector<int64_t>& shape, int32_t* out);

 private:
  Safetensors(std::string path, InputFile file) : path_(std::move(path)), file_(std::move(file)) {}
  Status ParseHeader();
  Status CheckData(int64_t data_bytes) const;
  Status Check(const std::string& name, std::initializer_list<const char*> dtypes,
               const std::vector<int64_t>& shape) const;
  Status Read(const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape,
              char* out);

  std::string path_;
  InputFile file_;
  int64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
};

}  // namespace pp
