#include "runtime/files/model_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "schema/disk.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

Status Failed(const std::string& path, int error = errno) {
  return Status::Failed(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

int64_t Bytes(const ModelFolderEntry& entry) {
  int64_t bytes = 4;
  for (const int64_t size : entry.shape) bytes *= size;
  return bytes;
}

}  // namespace

Result<ModelFolder> ModelFolder::Open(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(path, error)) &&
      !(fs::is_directory(path, error) && fs::is_empty(path, error)))
    return Status::Invalid(fmt::format("{}: exists already (a new folder)", path));
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  const std::string beside = fmt::format("{}.tmp-{}", name, getpid());
  fs::remove_all(beside, error);  // left by a process that had this id before
  if (mkdir(beside.c_str(), 0777) != 0)
    return Status::Invalid(fmt::format("{}: cannot be made: {}", path, std::strerror(errno)));
  return ModelFolder(name, beside);
}

ModelFolder::ModelFolder(ModelFolder&& other) noexcept
    : path_(std::move(other.path_)),
      beside_(std::exchange(other.beside_, "")),
      files_(std::exchange(other.files_, {})),
      places_(std::move(other.places_)) {}

ModelFolder::~ModelFolder() {
  for (const File& file : files_)
    if (file.descriptor >= 0) close(file.descriptor);
  std::error_code ignored;
  if (!beside_.empty()) fs::remove_all(beside_, ignored);
}

Status ModelFolder::Begin(const std::string& config_json, std::span<const ModelFolderEntry> entries,
                          int64_t file_bytes) {
  PP_RETURN_IF_ERROR(WriteText("config.json", config_json + "\n"));
  int64_t total = 0, in_file = 0;
  std::vector<size_t> first;  // entry of each file
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t bytes = Bytes(entries[i]);
    if (first.empty() || in_file + bytes > file_bytes) first.push_back(i), in_file = 0;
    in_file += bytes;
    total += bytes;
  }
  std::string map;
  for (size_t f = 0; f < first.size(); ++f) {
    const size_t end = f + 1 < first.size() ? first[f + 1] : entries.size();
    files_.push_back({first.size() == 1
                          ? "model.safetensors"
                          : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, first.size())});
    PP_RETURN_IF_ERROR(BeginFile(f, entries.subspan(first[f], end - first[f])));
    for (size_t i = first[f]; i < end; ++i)
      map += fmt::format("{}\n    \"{}\": \"{}\"", map.empty() ? "" : ",", entries[i].name,
                         files_[f].name);
  }
  if (files_.size() == 1) return {};
  return WriteText("model.safetensors.index.json",
                   fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}"
                               "\n  }}\n}}\n",
                               total, map));
}

// The header, and space for the data, so that a full disk is detected early.
Status ModelFolder::BeginFile(size_t file, std::span<const ModelFolderEntry> entries) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  int64_t at = 0;
  for (const ModelFolderEntry& entry : entries) {
    places_.push_back({file, at});
    header += fmt::format(R"(,"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                          entry.name, fmt::join(entry.shape, ","), at, at + Bytes(entry));
    at += Bytes(entry);
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string begin(8, '\0');
  for (int i = 0; i < 8; ++i) begin[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
  begin += header;
  for (size_t i = places_.size() - entries.size(); i < places_.size(); ++i)
    places_[i].offset += static_cast<int64_t>(begin.size());
  const std::string path = beside_ + "/" + files_[file].name;
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return Failed(path);
  files_[file].descriptor = descriptor;
  int error = posix_fallocate(descriptor, 0, static_cast<int64_t>(begin.size()) + at);
  if (error == 0) error = WriteAll(descriptor, begin, 0);
  return error == 0 ? Status() : Failed(path, error);
}

Status ModelFolder::Write(size_t entry, int64_t first, const float* numbers, int64_t count) {
  const Place& place = places_[entry];
  const File& file = files_[place.file];
  const std::string_view bytes{reinterpret_cast<const char*>(numbers),
                               static_cast<size_t>(count) * 4};
  const int error = WriteAll(file.descriptor, bytes, place.offset + first * 4);
  return error == 0 ? Status() : Failed(path_ + "/" + file.name, error);
}

Status ModelFolder::WriteText(const std::string& name, const std::string& text) {
  const std::string path = beside_ + "/" + name;
  const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return Failed(path);
  const int error = WriteAll(descriptor, text);
  const Status synced = Sync(descriptor, name);
  return error == 0 ? synced : Failed(path, error);
}

// Syncs to the disk and closes it.
Status ModelFolder::Sync(int descriptor, const std::string& name) {
  const bool synced = fsync(descriptor) == 0;
  const Status status = synced ? Status() : Failed(path_ + "/" + name);
  if (close(descriptor) != 0 && synced) return Failed(path_ + "/" + name);
  return status;
}

Status ModelFolder::Finish() {
  Status status;
  for (File& file : files_) {
    const Status one = Sync(std::exchange(file.descriptor, -1), file.name);
    if (status.ok()) status = one;
  }
  PP_RETURN_IF_ERROR(status);
  const int folder = open(beside_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return Failed(path_);
  PP_RETURN_IF_ERROR(Sync(folder, "."));
  if (rename(beside_.c_str(), path_.c_str()) != 0) return Failed(path_);
  beside_.clear();
  return {};
}

}  // namespace pp
