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

#include "runtime/files/folder.h"
#include "schema/base/disk.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

Status Failed(const std::string& path, int error = errno) {
  return Status::Failed(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

constexpr char kUnfinished[] = ".unfinished";

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

// Whether `path` is the open folder.
bool IsAt(int folder, const std::string& path) {
  struct stat open, there;
  return fstat(folder, &open) == 0 && lstat(path.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
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
  const std::string name = WithoutSlash(path), beside = name + kUnfinished;
  PP_RETURN_IF_ERROR(MakeParent(name));
  if (mkdir(beside.c_str(), 0777) != 0 && errno != EEXIST)
    return Status::Invalid(fmt::format("{}: cannot be made: {}", path, std::strerror(errno)));
  const int folder = open(beside.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0)
    return Status::Invalid(fmt::format("{}: cannot be written: {}", beside, std::strerror(errno)));
  // The other run may have finished in between, and given what is locked its name.
  if (!Lock(folder) || !IsAt(folder, beside)) {
    close(folder);
    return Status::Invalid(fmt::format("{}: another run is writing it (another folder)", path));
  }
  ModelFolder made(name, beside, folder);
  const Status emptied = made.Empty();
  if (!emptied.ok()) made.beside_.clear();  // it stays
  PP_RETURN_IF_ERROR(emptied);
  return made;
}

bool ModelFolder::IsBegun(const std::string& path) {
  std::error_code error;
  return fs::exists(WithoutSlash(path) + kUnfinished, error);
}

// Removes what a killed run has left, and nothing else.
Status ModelFolder::Empty() const {
  std::error_code error;
  std::vector<fs::path> ours;
  for (fs::directory_iterator at(beside_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (name != "config.json" && !name.starts_with("model"))
      return Status::Invalid(
          fmt::format("{}: has {}, which is not of an unfinished export (an empty folder, or none)",
                      beside_, name));
    ours.push_back(at->path());
  }
  for (const fs::path& path : ours) fs::remove(path, error);
  return {};
}

ModelFolder::ModelFolder(ModelFolder&& other) noexcept
    : path_(std::move(other.path_)),
      beside_(std::exchange(other.beside_, "")),
      folder_(std::exchange(other.folder_, -1)),
      files_(std::exchange(other.files_, {})),
      places_(std::move(other.places_)) {}

ModelFolder::~ModelFolder() {
  for (const File& file : files_)
    if (file.descriptor >= 0) close(file.descriptor);
  std::error_code ignored;
  if (!beside_.empty()) fs::remove_all(beside_, ignored);
  if (folder_ >= 0) close(folder_);
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
Status ModelFolder::Sync(int descriptor, const std::string& name, FileWatch* watch) {
  const std::string path = path_ + "/" + name;
  const FileOperation operation(watch, "fsync", path);
  const bool synced = fsync(descriptor) == 0;
  const Status status = synced ? Status() : Failed(path);
  if (close(descriptor) != 0 && synced) return Failed(path);
  return status;
}

Status ModelFolder::Finish(FileWatch* watch) {
  Status status;
  for (File& file : files_) {
    const Status one = Sync(std::exchange(file.descriptor, -1), file.name, watch);
    if (status.ok()) status = one;
  }
  PP_RETURN_IF_ERROR(status);
  const FileOperation operation(watch, "fsync", path_);
  if (fsync(folder_) != 0) return Failed(path_);
  status = Name();
  const Status synced = SyncParent(path_);
  return status.ok() ? synced : status;
}

// `path`, or, where somebody has put something there meanwhile, a new name beside it. A model that
// was trained is never given up.
Status ModelFolder::Name() {
  std::string name = path_;
  for (int number = 2; rename(beside_.c_str(), name.c_str()) != 0; ++number) {
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR) return Failed(name);
    name = fmt::format("{}-{}", path_, number);
  }
  beside_.clear();
  if (name == path_) return {};
  return Status::Failed(
      fmt::format("{}: has appeared during the training (the model is in {})", path_, name));
}

}  // namespace pp
