// Safetensors files as tests want them: any names, any types, any numbers.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace pp {

struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> numbers;
  std::string dtype = "F32";  // or BF16, which gets the upper halves; others get the bytes of F32
};

inline void WriteSafetensors(const std::string& path, const std::vector<FileTensor>& tensors) {
  std::string header = "{", data;
  for (const FileTensor& tensor : tensors) {
    const size_t begin = data.size();
    for (const float number : tensor.numbers) {
      char bytes[4];
      std::memcpy(bytes, &number, 4);
      tensor.dtype == "BF16" ? data.append(bytes + 2, 2) : data.append(bytes, 4);
    }
    std::string shape;
    for (const int64_t size : tensor.shape)
      shape += (shape.empty() ? "" : ",") + std::to_string(size);
    header += (header.size() == 1 ? "\"" : ",\"") + tensor.name + R"(":{"dtype":")" + tensor.dtype +
              R"(","shape":[)" + shape + R"(],"data_offsets":[)" + std::to_string(begin) + "," +
              std::to_string(data.size()) + "]}";
  }
  header += "}";
  const uint64_t length = header.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), 8) << header << data;
}

}  // namespace pp
