#include "runtime/files/weight_files.h"

#include <fmt/format.h>

#include <filesystem>
#include <set>
#include <utility>

#include "runtime/files/digest.h"
#include "schema/base/json.h"

namespace pp {
namespace {

constexpr int64_t kMaxIndex = 100 << 20;

bool IsFile(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}
std::string WholePath(const std::string& path) {
  return IsFile(path) ? path : path + "/model.safetensors";
}
std::string IndexPath(const std::string& path) {
  return IsFile(path) ? path : path + "/model.safetensors.index.json";
}

bool HasIndex(const std::string& path) {
  if (IsFile(path)) return path.ends_with(".json");
  std::error_code ignored;
  return !std::filesystem::exists(WholePath(path), ignored) &&
         std::filesystem::exists(IndexPath(path), ignored);
}

// Tensor -> name of its file.
Result<std::map<std::string, std::string>> ReadIndex(const std::string& path) {
  const Result<std::string> text = ReadWhole(path, "an index of safetensors files", kMaxIndex);
  PP_RETURN_IF_ERROR(text.status());
  std::map<std::string, std::string> map;
  const auto take = [&](const JsonPart& member) -> Status {
    const nlohmann::json& value = member.value;
    const std::string in = value.is_string() ? value.get<std::string>() : "";
    if (in.empty() || in.find('/') != std::string::npos || in.find('\0') != std::string::npos)
      return Status::Invalid(
          fmt::format("tensor {} is in {} (a file of the same folder)", Shown(member.key),
                      Shown(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace))));
    if (!map.emplace(member.key, in).second)
      return Status::Invalid(fmt::format("tensor {} occurs twice", Shown(member.key)));
    return {};
  };
  const Result<bool> whole = ForEachJsonPart(*text, {"weight_map"}, take);
  PP_RETURN_IF_ERROR(whole.status().In(path));
  if (!*whole) return Status::Invalid(path + ": has no weight_map (an index of safetensors files)");
  return map;
}

}  // namespace

std::string WeightFiles::Folder(const std::string& path) {
  if (!IsFile(path)) return path;
  const std::string folder = std::filesystem::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

std::vector<std::string> WeightFiles::Paths(const std::string& path) {
  if (!HasIndex(path)) return {WholePath(path)};
  std::vector<std::string> paths = {IndexPath(path)};
  const auto index = ReadIndex(IndexPath(path));
  std::set<std::string> files;
  if (index.ok())
    for (const auto& [name, file] : *index) files.insert(Folder(path) + "/" + file);
  paths.insert(paths.end(), files.begin(), files.end());
  return paths;
}

Result<uint64_t> WeightFiles::Digest(const std::string& path) {
  uint64_t all = 0;
  for (const std::string& each : Paths(path)) {
    const Result<InputFile> file = InputFile::Open(each, "a safetensors file");
    PP_RETURN_IF_ERROR(file.status());
    const Result<uint64_t> one = pp::Digest(*file);
    PP_RETURN_IF_ERROR(one.status());
    all = all * 0x9E3779B97F4A7C15u + *one;
  }
  return all;
}

Result<WeightFiles> WeightFiles::Open(const std::string& given) {
  WeightFiles files;
  const auto open = [&](const std::string& path) -> Status {
    if (files.files_.contains(path)) return {};
    Result<Safetensors> file = Safetensors::Open(path);
    PP_RETURN_IF_ERROR(file.status());
    files.files_.emplace(path, std::move(*file));
    return {};
  };
  if (!HasIndex(given)) {
    files.path_ = WholePath(given);
    PP_RETURN_IF_ERROR(open(files.path_));
    files.whole_ = &files.files_.begin()->second;
    return files;
  }
  files.path_ = IndexPath(given);
  const auto index = ReadIndex(files.path_);
  PP_RETURN_IF_ERROR(index.status());
  for (const auto& [name, file] : *index) {
    const std::string path = Folder(given) + "/" + file;
    PP_RETURN_IF_ERROR(open(path));
    Safetensors& in = files.files_.at(path);
    if (in.Find(name) == nullptr)
      return Status::Invalid(fmt::format("{}: tensor {} is missing ({} says that it is there)",
                                         Shown(path), Shown(name), files.path_));
    files.file_of_[name] = &in;
  }
  return files;
}

Status WeightFiles::ReadFloats(const std::string& name, const std::vector<int64_t>& shape,
                               const Safetensors::Block& block, float* out) {
  Safetensors* file = whole_ ? whole_ : file_of_.at(name);
  return file->ReadFloats(name, shape, block, out);
}

}  // namespace pp
