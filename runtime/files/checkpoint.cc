#include "runtime/files/checkpoint.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "runtime/files/checked_part.h"
#include "runtime/files/folder.h"
#include "schema/base/json.h"

namespace pp {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr char kSaving[] = ".saving-", kStep[] = "step-", kDamaged[] = ".damaged-";

}  // namespace

std::string StepFolder(const std::string& dir, int64_t step) {
  return fmt::format("{}/{}{:08}", dir, kStep, step);
}
std::string SavingFolder(const std::string& dir, int64_t step) {
  return fmt::format("{}/{}{:08}", dir, kSaving, step);
}
std::string ShardPath(const std::string& folder, int rank) {
  return fmt::format("{}/rank-{}", folder, rank);
}

namespace {

// Whether a checkpoint's folder has a file of this name.
bool IsPart(const std::string& name) {
  int rank = 0;
  return name == "manifest.json" || IsSourcePart(name) ||
         (std::sscanf(name.c_str(), "rank-%d", &rank) == 1 && name == fmt::format("rank-{}", rank));
}

// The step of a folder of this name; 0: it is not StepFolder's or SavingFolder's.
int64_t StepOf(const std::string& name, const char* prefix) {
  int64_t step = 0;
  const size_t length = std::strlen(prefix);
  if (!name.starts_with(prefix) || std::sscanf(name.c_str() + length, "%ld", &step) != 1) return 0;
  return name == fmt::format("{}{:08}", prefix, step) ? step : 0;
}

// Removes the parts of a checkpoint from a folder, and the folder, if nothing else is in it. False:
// it stays.
bool RemoveParts(const std::string& folder) {
  std::error_code error;
  if (fs::is_symlink(folder, error)) return false;
  std::vector<fs::path> parts;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename();
    if (IsPart(name) || name.starts_with("manifest.json.tmp-")) parts.push_back(at->path());
  }
  // The manifest is the last to go.
  std::sort(parts.rbegin(), parts.rend());
  for (const fs::path& part : parts) unlink(part.c_str());
  return rmdir(folder.c_str()) == 0 || errno == ENOENT;
}

bool IsCheckpoint(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (IsPart(at->path().filename())) return true;
  return false;
}

}  // namespace

std::vector<int64_t> SavedSteps(const std::string& dir) {
  std::vector<int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const int64_t step = StepOf(at->path().filename(), kStep);
    if (step > 0 && IsCheckpoint(at->path())) steps.push_back(step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// --- the manifest -----------------------------------------------------------------------------

Status WriteManifest(const std::string& folder, const Manifest& manifest) {
  Json shards = Json::array();
  for (const Manifest::Shard& shard : manifest.shards)
    shards.push_back({{"bytes", shard.bytes}, {"footer", shard.footer_sum}});
  Json source = manifest.source ? Json::array() : Json();
  for (const SourcePart& part : manifest.source.value_or(std::vector<SourcePart>()))
    source.push_back({{"name", part.name}, {"bytes", part.bytes}, {"sum", part.sum}});
  Json best;
  if (manifest.best)
    best = {{"step", manifest.best->step},
            {"loss", manifest.best->loss},
            {"data", manifest.best->data},
            {"targets", manifest.best->targets}};
  std::string text = Json{
      {"format", kManifestFormat},
      {"model", Json::parse(manifest.model)},
      {"lora", manifest.lora},
      {"step", manifest.step},
      {"updates", manifest.updates},
      {"by_epochs", manifest.by_epochs},
      {"pass", manifest.pass.value_or(0)},
      {"sequence", manifest.sequence},
      {"sequences", manifest.sequences},
      {"sequence_length", manifest.sequence_length},
      {"data", manifest.data.value_or(0)},
      {"options", manifest.options},
      {"seed", manifest.seed},
      {"loss_scale", manifest.loss_scale},
      {"good_steps", manifest.good_steps},
      {"skipped", manifest.skipped},
      {"best", best},
      {"source", source},
      {"shards", shards}}.dump(1);
  text += fmt::format("\n{:016x}\n", SumOf(text.data(), static_cast<int64_t>(text.size())));
  const std::string_view parts[] = {text};
  return WriteWhole(folder + "/manifest.json", parts);
}

Result<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  const Result<InputFile> file = OpenPart(path, "a checkpoint's manifest");
  PP_RETURN_IF_ERROR(file.status());
  const Status damaged = Status::Invalid(path + ": damaged (a checkpoint's manifest)");
  constexpr int64_t kEnd = 18;  // a newline, 16 digits, a newline
  const int64_t length = file->bytes() - kEnd;
  if (length < 0 || length > kMostText) return damaged;
  std::string text(file->bytes(), 0);
  PP_RETURN_IF_ERROR(file->Read(0, text.data(), file->bytes()));
  if (text.substr(length) != fmt::format("\n{:016x}\n", SumOf(text.data(), length))) return damaged;
  const Result<Json> parsed = ParseJson(text.substr(0, length));
  if (!parsed.ok()) return damaged;
  const Json& root = *parsed;
  Manifest manifest;
  const bool reads = Reads([&] {
    manifest.format = root.at("format");
    if (!IsReadFormat(manifest.format)) return;
    manifest.model = root.at("model").dump();
    manifest.lora = root.value("lora", "");
    manifest.sequences = root.at("sequences");
    manifest.seed = root.at("seed");
    manifest.updates = root.at("updates");
    manifest.by_epochs = root.at("by_epochs");
    if (root.contains("pass")) manifest.pass = root.at("pass").get<int64_t>();
    manifest.sequence = root.value("sequence", int64_t{0});
    manifest.loss_scale = root.value("loss_scale", 0.0);  // older ones have none
    manifest.good_steps = root.value("good_steps", int64_t{0});
    manifest.skipped = root.value("skipped", int64_t{0});
    manifest.sequence_length = root.value("sequence_length", int64_t{0});
    if (root.contains("data")) manifest.data = root.at("data").get<uint64_t>();
    manifest.options = root.value("options", manifest.options);
    if (const Json best = root.value("best", Json()); best.is_object())
      manifest.best = {best.at("step"), best.at("loss"), best.at("data"), best.at("targets")};
    const Json source = root.value("source", Json());
    if (source.is_array()) manifest.source.emplace();
    for (const Json& part : source)
      manifest.source->push_back({part.at("name"), part.at("bytes"), part.at("sum")});
    for (const Json& shard : root.at("shards"))
      manifest.shards.push_back({shard.at("bytes"), shard.at("footer")});
    manifest.step = root.at("step");
  });
  const bool known = IsReadFormat(manifest.format);
  if (!reads || manifest.format < 1 || (known && manifest.step < 1)) return damaged;
  if (manifest.pass.value_or(0) < 0 || manifest.sequence < 0) return damaged;
  return manifest;
}

// --- the folder -------------------------------------------------------------------------------

namespace {

// What a .lock has: a number, of 16 digits.
constexpr int64_t kLockBytes = 17;

// Whether an open file is one that only a run has written: what else has this name is not
// overwritten.
bool IsLock(int descriptor) {
  struct stat stat;
  char text[kLockBytes] = {};
  if (fstat(descriptor, &stat) != 0 || !S_ISREG(stat.st_mode) || stat.st_nlink > 1) return false;
  if (stat.st_size == 0) return stat.st_uid == geteuid();
  return stat.st_size == kLockBytes && pread(descriptor, text, kLockBytes, 0) == kLockBytes &&
         std::all_of(text, text + 16, [](unsigned char c) { return std::isxdigit(c); });
}

}  // namespace

Result<SaveFolder> SaveFolder::Open(const std::string& dir, int64_t keep) {
  PP_CHECK(keep >= 2);
  std::string path = dir;
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  PP_RETURN_IF_ERROR(MakeFolder(path));
  const std::string name = path + "/.lock";
  const int lock = open(name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
  if (lock < 0 && errno != ELOOP)
    return Status::Invalid(fmt::format("{}: cannot be written: {}", dir, std::strerror(errno)));
  if (lock >= 0 && !Lock(lock)) {
    close(lock);
    return Status::Invalid(fmt::format("{}: another run is saving there (another folder)", dir));
  }
  if (lock < 0 || !IsLock(lock)) {
    if (lock >= 0) close(lock);
    return Status::Invalid(fmt::format(
        "{}: is not what a run that saves there has written (another folder, or none of it)",
        name));
  }
  SaveFolder folder(path, lock, keep);
  // What each save needs: on a file system that cannot do it, now is the time to say so.
  const Status synced = SyncFolder(path);
  if (!synced.ok()) return Status::Invalid(synced.message() + " (another file system)");
  folder.FinishOrRemove();
  uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) number = getpid();
  // On the disk: other hosts may read it.
  const std::string text = fmt::format("{:016x}\n", number);
  if (const int wrong = WriteAll(lock, text, 0))
    return Status::Invalid(fmt::format("{}: cannot be written: {}", name, std::strerror(wrong)));
  fsync(lock);
  return folder;
}

uint64_t SaveFolder::NumberIn(const std::string& dir) {
  const Result<InputFile> file = InputFile::Open(dir + "/.lock", "");
  char text[17] = {};
  unsigned long number = 0;
  if (!file.ok() || file->bytes() < 16 || !file->Read(0, text, 16).ok()) return 0;
  return std::sscanf(text, "%16lx", &number) == 1 ? number : 0;
}

// What was being saved: a whole checkpoint gets its name, of any other one the parts are removed.
void SaveFolder::FinishOrRemove() {
  std::error_code error;
  std::vector<int64_t> steps;
  for (fs::directory_iterator at(path_, error), end; !error && at != end; at.increment(error))
    if (const int64_t step = StepOf(at->path().filename(), kSaving)) steps.push_back(step);
  for (const int64_t step : steps) {
    const std::string saving = SavingFolder(path_, step), saved = StepFolder(path_, step);
    const bool whole = ReadManifest(saving).ok() && !fs::exists(saved, error);
    if (!whole || rename(saving.c_str(), saved.c_str()) != 0) Drop(step);
  }
}

SaveFolder::SaveFolder(SaveFolder&& other) noexcept
    : path_(std::move(other.path_)),
      lock_(std::exchange(other.lock_, -1)),
      keep_(other.keep_),
      source_(std::move(other.source_)),
      whole_(std::move(other.whole_)) {}

SaveFolder::~SaveFolder() {
  if (lock_ < 0) return;
  FinishOrRemove();
  close(lock_);
}

void SaveFolder::GoOnFrom(int64_t step) {
  whole_.clear();
  for (const int64_t saved : SavedSteps(path_))
    if (saved == step || (saved < step && ReadManifest(StepFolder(path_, saved)).ok()))
      whole_.insert(whole_.begin(), saved);
  while (static_cast<int64_t>(whole_.size()) > keep_) whole_.erase(whole_.begin());
}

Status SaveFolder::CheckRoom(int64_t checkpoints, int64_t bytes, int64_t besides) const {
  const auto there = static_cast<int64_t>(SavedSteps(path_).size());
  const int64_t more = std::min(checkpoints, std::max<int64_t>(1, keep_ + besides + 1 - there));
  struct statvfs disk;
  if (statvfs(path_.c_str(), &disk) != 0) return {};  // it does not say
  const auto free = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
  if (bytes <= free / more) return {};
  return Status::Invalid(fmt::format(
      "{}: {} of {} bytes each at a time, and {} bytes are free (a larger disk)", path_,
      more == 1 ? "1 more checkpoint" : fmt::format("{} more checkpoints", more), bytes, free));
}

Status SaveFolder::Finish(Manifest manifest, int ranks, FileWatch* watch,
                          std::vector<std::string>* notes) {
  const std::string saving = SavingFolder(path_, manifest.step);
  const std::string saved = StepFolder(path_, manifest.step);
  const FileOperation operation(watch, "fsync", saving);
  for (int rank = 0; rank < ranks; ++rank) {
    const Result<ShardReader> shard = ShardReader::Open(ShardPath(saving, rank));
    PP_RETURN_IF_ERROR(shard.status());
    manifest.shards.push_back({shard->bytes(), shard->footer_sum()});
  }
  const auto name = [&]() -> Status {
    if (source_ != nullptr) {
      Result<std::vector<SourcePart>> parts = WriteSourceParts(saving, *source_);
      PP_RETURN_IF_ERROR(parts.status());
      manifest.source = std::move(*parts);
    }
    PP_RETURN_IF_ERROR(WriteManifest(saving, manifest));
    PP_RETURN_IF_ERROR(SyncFolder(saving));
    if (IsCheckpoint(saved)) PP_RETURN_IF_ERROR(SetAside(manifest.step));
    return rename(saving.c_str(), saved.c_str()) == 0 ? Status() : CannotWrite(saved);
  };
  // What fails is tried once more.
  if (!name().ok()) PP_RETURN_IF_ERROR(name());
  if (!SyncFolder(path_).ok()) PP_RETURN_IF_ERROR(SyncFolder(path_));
  const int64_t before = whole_.empty() ? 0 : whole_.back();
  whole_.push_back(manifest.step);
  if (static_cast<int64_t>(whole_.size()) > keep_) whole_.erase(whole_.begin());
  for (const int64_t step : SavedSteps(path_)) {
    if (std::find(whole_.begin(), whole_.end(), step) != whole_.end()) continue;
    if (manifest.best && step == manifest.best->step) continue;
    if (step < before && ReadManifest(StepFolder(path_, step)).ok()) {
      Remove(step, notes);
    } else {
      const Status aside = SetAside(step);
      if (!aside.ok()) notes->push_back(aside.message());
    }
  }
  return {};
}

void SaveFolder::Drop(int64_t step) {
  const std::string saving = SavingFolder(path_, step);
  if (!ReadManifest(saving).ok()) RemoveParts(saving);
}

// A checkpoint that was not used may be all that its owner has.
Status SaveFolder::SetAside(int64_t step) {
  const std::string from = StepFolder(path_, step);
  const std::string name = fmt::format("{}/{}{}{:08}", path_, kDamaged, kStep, step);
  std::string to = name;
  for (int number = 2; rename(from.c_str(), to.c_str()) != 0; ++number) {
    if (errno != EEXIST && errno != ENOTEMPTY) return CannotWrite(to);
    to = fmt::format("{}-{}", name, number);
  }
  return {};
}

// Removes a checkpoint, and nothing else that is in its folder.
void SaveFolder::Remove(int64_t step, std::vector<std::string>* notes) {
  const std::string folder = StepFolder(path_, step);
  std::error_code error;
  bool others = false;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    others |= !IsPart(at->path().filename());
  others |= static_cast<bool>(error);
  // In one step: a part of a checkpoint never has a checkpoint's name.
  const std::string going = SavingFolder(path_, step);
  const bool renamed = !others && rename(folder.c_str(), going.c_str()) == 0;
  if (!RemoveParts(renamed ? going : folder))
    notes->push_back(folder + " stays: it has files that are not of its checkpoint");
}

}  // namespace pp
