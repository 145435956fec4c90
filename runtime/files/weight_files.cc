#include "runtime/files/weight_files.h"

#include <fmt/format.h>

#include <algorithm>
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

// Invalid: a folder without safetensors that has another format's weights.
Status CheckFormat(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored) ||
      std::filesystem::exists(std::filesystem::symlink_status(WholePath(path), ignored)))
    return {};
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model.bin.index.json", "tf_model.h5", "flax_model.msgpack"})
    if (std::filesystem::exists(path + "/" + name, ignored))
      return Status::Invalid(
          fmt::format("{}: has {} and no model.safetensors ({})", path, name, kHowToConvert));
  std::string other;
  for (std::filesystem::directory_iterator at(path, ignored), end; !ignored && at != end;
       at.increment(ignored))
    if (const std::string name = at->path().filename(); name.ends_with(".safetensors"))
      other = other.empty() ? name : std::min(other, name);
  if (other.empty()) return {};
  return Status::Invalid(fmt::format("{}: has {} and no model.safetensors ({})", path, Shown(other),
                                     other == "adapter_model.safetensors"
                                         ? "an adapter: merge it into its model"
                                         : "--weights with the file itself, or an index"));
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

Status WeightFiles::OpenFile(const std::string& path) {
  Result<Safetensors> opened = Safetensors::Open(path);
  PP_RETURN_IF_ERROR(opened.status());
  Safetensors& file = files_.emplace(path, std::move(*opened)).first->second;
  for (const auto& [name, entry] : file.entries())
    if (!file_of_.emplace(name, &file).second) twice_.push_back(name);
  return {};
}

Result<WeightFiles> WeightFiles::Open(const std::string& given) {
  WeightFiles files;
  if (!HasIndex(given)) {
    files.path_ = WholePath(given);
    PP_RETURN_IF_ERROR(CheckFormat(given));
    PP_RETURN_IF_ERROR(files.OpenFile(files.path_));
    return files;
  }
  files.path_ = IndexPath(given);
  const auto index = ReadIndex(files.path_);
  PP_RETURN_IF_ERROR(index.status());
  for (const auto& [name, file] : *index) {
    const std::string path = Folder(given) + "/" + file;
    if (!files.files_.contains(path)) PP_RETURN_IF_ERROR(files.OpenFile(path));
  }
  for (const auto& [name, file] : *index) {
    Safetensors& in = files.files_.at(Folder(given) + "/" + file);
    if (in.Find(name) != nullptr) files.file_of_[name] = &in;
    if (!files.Has(name)) files.absent_.push_back(name);
  }
  return files;
}

std::vector<std::string> WeightFiles::Names() const {
  std::vector<std::string> names;
  for (const auto& [name, file] : file_of_) names.push_back(name);
  return names;
}

Status WeightFiles::ReadFloats(const std::string& name, const std::vector<int64_t>& shape,
                               const Safetensors::Block& block, float* out) {
  return file_of_.at(name)->ReadFloats(name, shape, block, out);
}

}  // namespace pp
