#include "runtime/files/model_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include "runtime/files/adapter_config.h"
#include "runtime/files/folder.h"
#include "schema/base/disk.h"

namespace pp {
namespace {

namespace fs = std::filesystem;

Status Failed(const std::string& path, int error = errno) {
  return Status::Failed(fmt::format("{}: cannot be written: {}", path, std::strerror(error)));
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string WholeName(const std::string& stem) { return stem + ".safetensors"; }
std::string IndexName(const std::string& stem) { return stem + ".safetensors.index.json"; }
std::string PartName(const std::string& stem, size_t file, size_t files) {
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, file, files);
}

// Whether an export has a file of this name.
bool IsOurs(const std::string& name) {
  int file = 0, files = 0;
  return IsSourceFile(name) || name == kAdapterConfigName || name == WholeName(kAdapterName) ||
         name == WholeName("model") || name == IndexName("model") ||
         (std::sscanf(name.c_str(), "model-%5d-of-%5d", &file, &files) == 2 &&
          name == PartName("model", file, files));
}

// Whether a file has its beginning, which is written when the training is over, or cannot be read.
bool IsTrained(const fs::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  uint64_t begin = 0;
  const bool empty = file >= 0 && pread(file, &begin, sizeof begin, 0) >= 0 && begin == 0;
  if (file >= 0) close(file);
  return !empty;
}

}  // namespace

Result<ModelFolder> ModelFolder::Open(const std::string& path) {
  const std::string name = WithoutSlash(path), last = fs::path(name).filename();
  std::error_code error;
  if (last == "." || last == "..")
    return Status::Invalid(
        fmt::format("{}: cannot get another folder's name (a new folder)", path));
  const bool exists = fs::exists(fs::symlink_status(name, error));
  if (exists && !(fs::is_directory(name, error) && fs::is_empty(name, error)))
    return Status::Invalid(fmt::format("{}: exists already (a new folder)", path));
  // Of a link, the folder that it leads to.
  const std::string real = exists ? fs::canonical(name, error).string() : name;
  if (error && exists)
    return Status::Invalid(fmt::format("{}: cannot be read: {}", path, error.message()));
  if (exists && (IsMountPoint(real) || IsMountPoint(real + ".unfinished")))
    return Status::Invalid(fmt::format(
        "{}: is a mount point, which cannot be replaced (a folder in it: {}/model)", path, name));
  ModelFolder folder(exists && fs::is_symlink(name, error) ? real : name);
  PP_RETURN_IF_ERROR(MakeParent(folder.path_));
  PP_RETURN_IF_ERROR(folder.MakeFolder());
  PP_RETURN_IF_ERROR(folder.TakeOver());
  return folder;
}

bool ModelFolder::IsBegun(const std::string& path) {
  std::error_code error;
  return fs::exists(WithoutSlash(path) + ".unfinished", error);
}

// Makes the folder beside, if it is not there, and locks it.
Status ModelFolder::MakeFolder() {
  if (mkdir(beside_.c_str(), 0777) != 0 && errno != EEXIST)
    return Status::Invalid(fmt::format("{}: cannot be made: {}", path_, std::strerror(errno)));
  return LockFolder();
}

Status ModelFolder::LockFolder() {
  folder_ = open(beside_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder_ < 0)
    return Status::Invalid(fmt::format("{}: cannot be written: {}", beside_, std::strerror(errno)));
  // The other run may have finished in between, and given what is locked its name.
  if (Lock(folder_) && FolderIsThere()) return {};
  close(std::exchange(folder_, -1));
  return Status::Invalid(fmt::format("{}: another run is writing it (another folder)", path_));
}

// Another one, which nobody has yet: whatever has the name of the one that is gone is not ours.
Status ModelFolder::MakeAnew() {
  Close();
  PP_RETURN_IF_ERROR(MakeParent(path_));
  beside_ = path_ + ".unfinished";
  for (int number = 2; mkdir(beside_.c_str(), 0777) != 0; ++number) {
    if (errno != EEXIST) return Failed(beside_);
    beside_ = fmt::format("{}.unfinished-{}", path_, number);
  }
  PP_RETURN_IF_ERROR(LockFolder());
  return MakeFiles();
}

// What a killed run has left there: an export that was begun gets another name, of any other one
// the files are removed, and nothing else.
Status ModelFolder::TakeOver() {
  std::error_code error;
  std::vector<fs::path> ours;
  bool trained = false;
  for (fs::directory_iterator at(beside_, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (!IsOurs(name)) {
      close(std::exchange(folder_, -1));  // it stays
      return Status::Invalid(
          fmt::format("{}: has {}, which is not of an unfinished export (an empty folder, or none)",
                      beside_, name));
    }
    trained |= IsTrained(at->path());
    ours.push_back(at->path());
  }
  if (!trained) {
    for (const fs::path& path : ours) fs::remove(path, error);
    return {};
  }
  std::string aside;
  const int failure = Rename(beside_, path_ + ".earlier", &aside);
  close(std::exchange(folder_, -1));
  if (failure != 0) return Failed(beside_, failure);
  note_ = fmt::format("{} is what an earlier run trained and could not finish exporting", aside);
  return MakeFolder();
}

// Whether it is certain that the open folder still has its name.
bool ModelFolder::FolderIsThere() const {
  struct stat open, there;
  return fstat(folder_, &open) == 0 && lstat(beside_.c_str(), &there) == 0 &&
         open.st_dev == there.st_dev && open.st_ino == there.st_ino;
}

// Whether it is certain that somebody has removed the folder, or something of it.
bool ModelFolder::IsGone() const {
  struct stat open, there;
  if (folder_ < 0 || (lstat(beside_.c_str(), &there) != 0 && errno == ENOENT)) return true;
  if (fstat(folder_, &open) == 0 && lstat(beside_.c_str(), &there) == 0 &&
      (open.st_dev != there.st_dev || open.st_ino != there.st_ino))
    return true;
  return std::any_of(files_.begin(), files_.end(), [](const File& file) {
    struct stat stat;
    return file.descriptor < 0 || (fstat(file.descriptor, &stat) == 0 && stat.st_nlink == 0);
  });
}

ModelFolder::ModelFolder(ModelFolder&& other) noexcept
    : path_(std::move(other.path_)),
      beside_(std::move(other.beside_)),
      named_(std::move(other.named_)),
      note_(std::move(other.note_)),
      folder_(std::exchange(other.folder_, -1)),
      parent_(std::exchange(other.parent_, -1)),
      state_(other.state_),
      dtype_(other.dtype_),
      files_(std::exchange(other.files_, {})),
      places_(std::move(other.places_)) {}

ModelFolder::~ModelFolder() {
  if (folder_ >= 0 && state_ == State::kEmpty && FolderIsThere()) Remove();
  Close();
  if (parent_ >= 0) close(parent_);
}

// What this run has made, and nothing else.
void ModelFolder::Remove() {
  for (const File& file : files_)
    if (file.descriptor >= 0) unlink((beside_ + "/" + file.name).c_str());
  rmdir(beside_.c_str());
}

void ModelFolder::Close() {
  for (File& file : files_)
    if (file.descriptor >= 0) close(std::exchange(file.descriptor, -1));
  if (folder_ >= 0) close(std::exchange(folder_, -1));
}

int64_t ModelFolder::Bytes(const ModelFolderEntry& entry) const {
  int64_t bytes = BytesOf(dtype_);
  for (const int64_t size : entry.shape) bytes *= size;
  return bytes;
}

// The length of the header and the header of a safetensors file.
std::string ModelFolder::Header(std::span<const ModelFolderEntry> entries) const {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  int64_t at = 0;
  for (const ModelFolderEntry& entry : entries) {
    header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          entry.name, dtype_ == Dtype::kBf16 ? "BF16" : "F32",
                          fmt::join(entry.shape, ","), at, at + Bytes(entry));
    at += Bytes(entry);
  }
  header += "}";
  header.append((8 - header.size() % 8) % 8, ' ');
  std::string begin(8, '\0');
  for (int i = 0; i < 8; ++i) begin[i] = static_cast<char>(header.size() >> 8 * i & 0xff);
  return begin + header;
}

Status ModelFolder::Begin(Contents contents, std::span<const ModelFolderEntry> entries) {
  dtype_ = contents.dtype;
  PP_CHECK(dtype_ == Dtype::kFp32 || dtype_ == Dtype::kBf16);
  std::vector<size_t> first;  // entry of each file
  int64_t total = 0, in_file = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t bytes = Bytes(entries[i]);
    if (first.empty() || in_file + bytes > contents.file_bytes) first.push_back(i), in_file = 0;
    in_file += bytes;
    total += bytes;
  }
  std::string map;
  for (size_t f = 0; f < first.size(); ++f) {
    const size_t end = f + 1 < first.size() ? first[f + 1] : entries.size();
    File& file = AddFile(entries.subspan(first[f], end - first[f]));
    file.name =
        first.size() == 1 ? WholeName(contents.stem) : PartName(contents.stem, f + 1, first.size());
    for (size_t i = first[f]; i < end; ++i)
      map +=
          fmt::format("{}\n    \"{}\": \"{}\"", map.empty() ? "" : ",", entries[i].name, file.name);
  }
  if (first.size() > 1)
    contents.files.push_back(
        {IndexName(contents.stem),
         fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}"
                     "\n  }}\n}}\n",
                     total, map)});
  for (SourceFile& file : contents.files) {
    const auto bytes = std::ssize(file.bytes);
    files_.push_back({.name = file.name, .begin = std::move(file.bytes), .bytes = bytes});
  }
  const std::string parent = fs::path(path_).parent_path();
  parent_ = open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (parent_ < 0) return Failed(path_);
  PP_RETURN_IF_ERROR(MakeFiles());
  // What the end needs: on a file system that cannot do it, now is the time to say so.
  for (const int folder : {folder_, parent_})
    if (const int error = Sync(folder))
      return Status::Invalid(
          fmt::format("{}: its folder cannot be synced: {} (another file system)", path_,
                      std::strerror(error)));
  return {};
}

ModelFolder::File& ModelFolder::AddFile(std::span<const ModelFolderEntry> entries) {
  File file{.name = {}, .begin = Header(entries)};
  file.bytes = static_cast<int64_t>(file.begin.size());
  for (const ModelFolderEntry& entry : entries) {
    places_.push_back({files_.size(), file.bytes});
    file.bytes += Bytes(entry);
  }
  return files_.emplace_back(std::move(file));
}

// All files, with room for what will be in them.
Status ModelFolder::MakeFiles() {
  for (File& file : files_) PP_RETURN_IF_ERROR(MakeFile(&file));
  return {};
}

Status ModelFolder::MakeFile(File* file) {
  const std::string path = beside_ + "/" + file->name;
  file->descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file->descriptor < 0) return Failed(path);
  int error = 0;
  if (file->bytes == 0) return {};
  do {
    error = posix_fallocate(file->descriptor, 0, file->bytes);
  } while (error == EINTR);
  return error == 0 ? Status() : Failed(path, error);
}

Status ModelFolder::Start() {
  if (state_ == State::kNamed) return {};
  const bool gone = IsGone();
  if (state_ == State::kComplete && !gone) return {};
  state_ = State::kTrained;
  for (File& file : files_) file.left = file.bytes;
  if (gone) PP_RETURN_IF_ERROR(MakeAnew());
  Status status;
  for (File& file : files_) {
    const Status written = WriteTo(&file, file.begin, 0);
    if (status.ok()) status = written;
  }
  return status;
}

Status ModelFolder::Write(size_t entry, int64_t first, const float* numbers, int64_t count) {
  if (state_ != State::kTrained) return {};  // it is there
  const Place& place = places_[entry];
  const std::span<const float> all(numbers, count);
  if (dtype_ == Dtype::kBf16) return WriteHalves(place, first, all);
  return WriteTo(&files_[place.file], {reinterpret_cast<const char*>(numbers), all.size_bytes()},
                 place.offset + first * 4);
}

// Takes no memory at the end of a run.
Status ModelFolder::WriteHalves(const Place& place, int64_t first, std::span<const float> numbers) {
  std::array<uint16_t, 16384> halves;
  Status status;
  for (size_t done = 0; done < numbers.size(); done += halves.size()) {
    const std::span<const float> some =
        numbers.subspan(done, std::min(halves.size(), numbers.size() - done));
    for (size_t i = 0; i < some.size(); ++i) {
      const auto bits = std::bit_cast<uint32_t>(some[i]);
      halves[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      if ((halves[i] & 0x7f80) == 0x7f80 && status.ok())
        status =
            Status::Failed(fmt::format("{}/{}: {} is not a number of bf16 (--export-dtype fp32)",
                                       beside_, files_[place.file].name, some[i]));
    }
    const Status written = WriteTo(&files_[place.file],
                                   {reinterpret_cast<const char*>(halves.data()), some.size() * 2},
                                   place.offset + (first + static_cast<int64_t>(done)) * 2);
    if (status.ok()) status = written;
  }
  return status;
}

Status ModelFolder::WriteTo(File* file, std::string_view bytes, int64_t offset) {
  if (const int error = WriteAll(file->descriptor, bytes, offset))
    return Failed(beside_ + "/" + file->name, error);
  file->left -= static_cast<int64_t>(bytes.size());
  return {};
}

Status ModelFolder::Finish(FileWatch* watch) {
  if (state_ == State::kTrained) PP_RETURN_IF_ERROR(SyncFiles(watch));
  const FileOperation operation(watch, "fsync", path_);
  if (state_ != State::kNamed) {
    state_ = State::kComplete;
    if (const int error = Sync(folder_)) return Failed(path_, error);
    if (const int error = Rename(beside_, path_, &named_)) return Failed(path_, error);
    state_ = State::kNamed;
  }
  if (const int error = Sync(parent_))
    return Status::Failed(
        fmt::format("{}: is complete, but may lose its name if this host crashes: {}", named_,
                    std::strerror(error)));
  if (named_ == path_) return {};
  // A model that was trained is never given up.
  return Status::Failed(
      fmt::format("{}: has appeared during the training (the model is in {})", path_, named_));
}

Status ModelFolder::SyncFiles(FileWatch* watch) {
  Status status;
  for (File& file : files_) {
    const std::string path = path_ + "/" + file.name;
    const FileOperation operation(watch, "fsync", path);
    const int error = Sync(file.descriptor);
    if (error == 0) continue;
    file.left = file.bytes;  // whatever the disk has of it
    if (status.ok()) status = Failed(path, error);
  }
  return status;
}

Status ModelFolder::WithRemains(const Status& error) const {
  if (error.ok() || state_ == State::kEmpty || state_ == State::kNamed) return error;
  if (state_ == State::kComplete)
    return Status::Failed(fmt::format("{} (the model is complete in {}: mv {} {})", error.message(),
                                      beside_, beside_, path_));
  std::vector<std::string> partial;
  for (const File& file : files_)
    if (file.left != 0) partial.push_back(file.name);
  std::string rest = fmt::format("what was trained is in {}", beside_);
  if (!partial.empty())
    rest += fmt::format(", all but {}, which {} incomplete", fmt::join(partial, ", "),
                        partial.size() == 1 ? "is" : "are");
  return Status::Failed(fmt::format("{} ({})", error.message(), rest));
}

}  // namespace pp
