#include "runtime/files/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include "kernels/numbers.h"
#include "schema/base/json.h"

namespace pp {
namespace {

constexpr int64_t kMaxHeader = 100 << 20;  // the format's own limit
constexpr int64_t kPiece = 1 << 16;
constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 16;

// Bytes of one element; 0 for an unknown type.
int64_t DtypeBytes(std::string_view dtype) {
  constexpr std::pair<std::string_view, int64_t> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1},
      {"U16", 2},  {"I16", 2}, {"F16", 2}, {"BF16", 2},    {"U32", 4},
      {"I32", 4},  {"F32", 4}, {"U64", 8}, {"I64", 8},     {"F64", 8}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

// The numbers of a JSON array; false if it contains anything but non-negative integers.
bool Numbers(const nlohmann::json& array, std::vector<int64_t>* out) {
  if (!array.is_array()) return false;
  for (const nlohmann::json& value : array) {
    if (!value.is_number_unsigned()) return false;
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(kMaxElements)) return false;
    out->push_back(static_cast<int64_t>(number));
  }
  return true;
}

std::string Shape(const std::vector<int64_t>& shape) {
  return Shown(fmt::to_string(fmt::join(shape, ", ")));
}

// Product of the dimensions; -1 if it is absurd.
int64_t Elements(const std::vector<int64_t>& shape) {
  int64_t product = 1;
  for (const int64_t size : shape) {
    if (size != 0 && product > kMaxElements / size) return -1;
    product *= size;
  }
  return product;
}

bool ParseEntry(const nlohmann::json& value, SafetensorsEntry* entry) {
  if (!value.is_object()) return false;
  const auto dtype = value.find("dtype"), shape = value.find("shape");
  const auto data_offsets = value.find("data_offsets");
  if (dtype == value.end() || shape == value.end() || data_offsets == value.end()) return false;
  if (!dtype->is_string()) return false;
  entry->dtype = dtype->get<std::string>();
  std::vector<int64_t> offsets;
  if (!Numbers(*shape, &entry->shape)) return false;
  if (!Numbers(*data_offsets, &offsets) || offsets.size() != 2) return false;
  entry->begin = offsets[0];
  entry->end = offsets[1];
  return true;
}

}  // namespace

Result<Safetensors> Safetensors::Open(const std::string& path) {
  Result<InputFile> opened = InputFile::Open(path, "a safetensors file");
  PP_RETURN_IF_ERROR(opened.status());
  Safetensors file(path, std::move(*opened));
  const int64_t bytes = file.file_.bytes();
  unsigned char length_bytes[8] = {};
  PP_RETURN_IF_ERROR(file.file_.Read(0, length_bytes, std::min<int64_t>(8, bytes)));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | length_bytes[i];
  if (bytes < 8 || length > static_cast<uint64_t>(std::min(kMaxHeader, bytes - 8))) {
    // A zip, or a pickle of protocol 2.
    if (std::memcmp(length_bytes, "PK\3\4", 4) == 0 || std::memcmp(length_bytes, "\x80\2", 2) == 0)
      return Status::Invalid(path + ": is a PyTorch file (" + kHowToConvert + ")");
    return Status::Invalid(fmt::format(
        "{}: has {} bytes and says its header has {} (a safetensors file)", path, bytes, length));
  }
  file.data_begin_ = 8 + static_cast<int64_t>(length);
  PP_RETURN_IF_ERROR(file.ParseHeader());
  PP_RETURN_IF_ERROR(file.CheckData(bytes - file.data_begin_).In(path));
  return file;
}

Status Safetensors::ParseHeader() {
  std::string piece(kPiece, '\0');
  int64_t at = 8;
  Status read;  // names the file already
  const auto next = [&]() -> Result<std::string_view> {
    const int64_t bytes = std::min(kPiece, data_begin_ - at);
    read = file_.Read(at, piece.data(), bytes);
    PP_RETURN_IF_ERROR(read);
    at += bytes;
    return std::string_view(piece.data(), bytes);
  };
  // A duplicate name is an error: a reader that takes the last, and one that takes the first, would
  // see two different models.
  std::optional<std::string> twice, undescribed;
  bool metadata = false;
  const auto take = [&](const JsonPart& member) -> Status {
    const std::string& name = member.key;
    SafetensorsEntry entry;
    if (name == "__metadata__") {
      if (std::exchange(metadata, true)) twice = name;
    } else if (!ParseEntry(member.value, &entry)) {
      if (!undescribed) undescribed = name;
    } else {
      const size_t before = entries_.size();
      entries_.emplace_hint(entries_.end(), name, std::move(entry));
      if (entries_.size() == before) twice = name;
    }
    return {};
  };
  const Result<bool> whole = ForEachJsonPart(next, {}, take);
  PP_RETURN_IF_ERROR(read);
  PP_RETURN_IF_ERROR(whole.status().In("the header").In(path_));
  std::string wrong;
  if (!*whole) {
    wrong = "the header is not a JSON object";
  } else if (twice) {
    wrong = fmt::format("tensor {} occurs twice", Shown(*twice));
  } else if (undescribed) {
    wrong = fmt::format("tensor {} is not described by dtype, shape and data_offsets",
                        Shown(*undescribed));
  }
  return wrong.empty() ? Status() : Status::Invalid(wrong).In(path_);
}

Status Safetensors::CheckData(int64_t data_bytes) const {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const auto& [name, entry] : entries_) {
    const int64_t elements = Elements(entry.shape);
    const int64_t unit = DtypeBytes(entry.dtype);
    if (entry.begin > entry.end || elements < 0 ||
        (unit != 0 && entry.end - entry.begin != elements * unit)) {
      return Status::Invalid(
          fmt::format("tensor {} of shape [{}] and dtype {} is in bytes {} to {}", Shown(name),
                      Shape(entry.shape), Shown(entry.dtype), entry.begin, entry.end));
    }
    ranges.emplace_back(entry.begin, entry.end);
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& range : ranges) {
    if (range.first != end) {
      return Status::Invalid(fmt::format(
          "a tensor begins at byte {} of the data ({} would be right)", range.first, end));
    }
    end = range.second;
  }
  if (end != data_bytes) {
    return Status::Invalid(fmt::format("has {} bytes of data ({} by its header)", data_bytes, end));
  }
  return {};
}

const SafetensorsEntry* Safetensors::Find(const std::string& name) const {
  const auto it = entries_.find(name);
  return it == entries_.end() ? nullptr : &it->second;
}

Status Safetensors::ReadFloats(const std::string& name, const std::vector<int64_t>& shape,
                               float* out) {
  return Read(name, "F32", shape, reinterpret_cast<char*>(out));
}

Status Safetensors::ReadInts(const std::string& name, const std::vector<int64_t>& shape,
                             int32_t* out) {
  return Read(name, "I32", shape, reinterpret_cast<char*>(out));
}

Status Safetensors::ReadFloats(const std::string& name, const std::vector<int64_t>& shape,
                               const Block& block, float* out) {
  PP_RETURN_IF_ERROR(Check(name, {"F32", "BF16", "F16"}, shape));
  const SafetensorsEntry& entry = *Find(name);
  const int64_t cols = shape.empty() ? 1 : shape.back(), unit = DtypeBytes(entry.dtype);
  const bool whole_rows = block.cols == cols && block.row_stride == cols;
  const int64_t runs = whole_rows ? 1 : block.rows;
  const int64_t numbers = whole_rows ? block.rows * block.cols : block.cols;
  for (int64_t row = 0; row < runs; ++row) {
    float* to = out + row * block.row_stride;
    // Halves are read to the end of their floats' place, and widened from its beginning on.
    char* read = reinterpret_cast<char*>(to) + numbers * (4 - unit);
    PP_RETURN_IF_ERROR(
        file_.Read(data_begin_ + entry.begin + ((block.row + row) * cols + block.col) * unit, read,
                   numbers * unit));
    for (int64_t i = 0; unit == 2 && i < numbers; ++i) {
      uint16_t bits;
      std::memcpy(&bits, read + 2 * i, 2);
      to[i] = entry.dtype == "BF16" ? kernels::Widened(kernels::BFloat16{bits})
                                    : kernels::Widened(kernels::Float16{bits});
    }
  }
  return {};
}

Status Safetensors::Check(const std::string& name, std::initializer_list<const char*> dtypes,
                          const std::vector<int64_t>& shape) const {
  const SafetensorsEntry* entry = Find(name);
  if (entry == nullptr)
    return Status::Invalid(fmt::format("{}: tensor {} is missing", path_, name));
  if (std::find(dtypes.begin(), dtypes.end(), entry->dtype) == dtypes.end())
    return Status::Invalid(fmt::format("{}: tensor {} is {} ({} is read)", path_, name,
                                       Shown(entry->dtype), fmt::join(dtypes, " or ")));
  if (entry->shape != shape) {
    return Status::Invalid(fmt::format("{}: tensor {} has the shape [{}] (the model's is [{}])",
                                       path_, name, Shape(entry->shape), fmt::join(shape, ", ")));
  }
  return {};
}

Status Safetensors::Read(const std::string& name, const std::string& dtype,
                         const std::vector<int64_t>& shape, char* out) {
  PP_RETURN_IF_ERROR(Check(name, {dtype.c_str()}, shape));
  const SafetensorsEntry* entry = Find(name);
  return file_.Read(data_begin_ + entry->begin, out, entry->end - entry->begin);
}

}  // namespace pp
