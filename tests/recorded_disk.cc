#include "tests/recorded_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <vector>

#include "schema/base/status.h"

namespace pp {
namespace {

// Files and folders are numbered; the recorded folder is 0.
struct Change {
  enum Kind { kName, kRename, kRemoveName, kBytes, kSize, kSync } kind;
  int node = 0;      // whose bytes or size change, what is synced, or what gets a name
  int folder = 0;    // where the name is,
  std::string name;  // and goes away;
  int to_folder = 0;
  std::string to_name;
  int64_t offset = 0;  // or the new size
  std::string bytes;
};

// Folders and files at one instant.
struct Tree {
  struct Node {
    bool folder = false;
    std::map<std::string, int> names;
    std::string bytes;
  };
  std::map<int, Node> nodes{{0, {.folder = true, .names = {}, .bytes = {}}}};

  void Apply(const Change& change, bool is_folder) {
    switch (change.kind) {
      case Change::kName:
        nodes[change.node].folder = is_folder;
        nodes[change.folder].names[change.name] = change.node;
        return;
      case Change::kRename: {
        const auto at = nodes[change.folder].names.find(change.name);
        if (at == nodes[change.folder].names.end()) return;
        nodes[change.to_folder].names[change.to_name] = at->second;
        nodes[change.folder].names.erase(change.name);
        return;
      }
      case Change::kRemoveName:
        nodes[change.folder].names.erase(change.name);
        return;
      case Change::kBytes: {
        std::string& bytes = nodes[change.node].bytes;
        bytes.resize(std::max<size_t>(bytes.size(), change.offset + change.bytes.size()));
        bytes.replace(change.offset, change.bytes.size(), change.bytes);
        return;
      }
      case Change::kSize:
        nodes[change.node].bytes.resize(change.offset);
        return;
      case Change::kSync:
        return;
    }
  }

  void Write(int node, const std::filesystem::path& to) const {
    const Node& here = nodes.at(node);
    if (!here.folder) {
      std::ofstream(to, std::ios::binary) << here.bytes;
      return;
    }
    std::filesystem::create_directories(to);
    for (const auto& [name, inner] : here.names) Write(inner, to / name);
  }
};

struct Recorder {
  bool on = false;
  std::string root;
  std::vector<Change> changes;
  std::map<int, bool> is_folder{{0, true}};
  Tree now;
  struct Open {
    int node = 0;
    int64_t at = 0;
  };
  std::map<int, Open> open;  // by descriptor
};
Recorder recorder;

void Add(Change change) {
  recorder.now.Apply(change, recorder.is_folder[change.node]);
  recorder.changes.push_back(std::move(change));
}

struct Spot {
  bool inside = false;
  int folder = 0, node = -1;  // node -1: nothing has that name
  std::string name;
};

// Where a path leads; `from`: a descriptor of a folder, or AT_FDCWD.
Spot Find(int from, const char* path) {
  Spot spot;
  if (!recorder.on) return spot;
  std::string rest = path;
  int node = 0;
  if (path[0] != '/' && from != AT_FDCWD) {
    const auto at = recorder.open.find(from);
    if (at == recorder.open.end()) return spot;
    node = at->second.node;
  } else {
    rest = std::filesystem::absolute(rest).lexically_normal();
    if (!rest.starts_with(recorder.root + "/") && rest != recorder.root) return spot;
    rest.erase(0, recorder.root.size());
  }
  spot = {.inside = true, .folder = 0, .node = node, .name = ""};
  for (const auto& part : std::filesystem::path(rest)) {
    if (part == "/" || part == "." || part.empty()) continue;
    PP_CHECK(spot.node >= 0);
    spot.folder = spot.node;
    spot.name = part;
    const auto& names = recorder.now.nodes.at(spot.node).names;
    const auto next = names.find(spot.name);
    spot.node = next == names.end() ? -1 : next->second;
  }
  return spot;
}

int Made(const Spot& spot, bool folder) {
  const int node = static_cast<int>(recorder.is_folder.size());
  recorder.is_folder[node] = folder;
  Add({.kind = Change::kName, .node = node, .folder = spot.folder, .name = spot.name});
  return node;
}

int Opened(int from, const char* path, int flags, mode_t mode) {
  const Spot spot = Find(from, path);
  const auto descriptor = static_cast<int>(syscall(SYS_openat, from, path, flags, mode));
  if (descriptor < 0 || !spot.inside) return descriptor;
  const int node = spot.node >= 0 ? spot.node : Made(spot, false);
  recorder.open[descriptor] = {node, 0};
  if ((flags & O_TRUNC) != 0 && spot.node >= 0) Add({.kind = Change::kSize, .node = node});
  return descriptor;
}

void Wrote(int descriptor, const void* data, ssize_t bytes, int64_t offset) {
  const auto at = recorder.open.find(descriptor);
  if (!recorder.on || at == recorder.open.end() || bytes <= 0) return;
  if (offset < 0) offset = at->second.at, at->second.at += bytes;
  Add({.kind = Change::kBytes,
       .node = at->second.node,
       .offset = offset,
       .bytes = std::string(static_cast<const char*>(data), bytes)});
}

int Removed(int from, const char* path, int flags) {
  const Spot spot = Find(from, path);
  const auto result = static_cast<int>(syscall(SYS_unlinkat, from, path, flags));
  if (result == 0 && spot.inside)
    Add({.kind = Change::kRemoveName, .folder = spot.folder, .name = spot.name});
  return result;
}

// Whether the change was synced before the crash.
bool IsSynced(size_t change, size_t end) {
  const Change& one = recorder.changes[change];
  const bool bytes = one.kind == Change::kBytes || one.kind == Change::kSize;
  const auto synced = [&](int node) {
    for (size_t i = change + 1; i < end; ++i)
      if (recorder.changes[i].kind == Change::kSync && recorder.changes[i].node == node)
        return true;
    return false;
  };
  if (bytes) return synced(one.node);
  return synced(one.folder) && (one.kind != Change::kRename || synced(one.to_folder));
}

}  // namespace

void Record(const std::string& folder) {
  recorder = {};
  recorder.root = std::filesystem::canonical(folder);
  recorder.on = true;
}

size_t Recorded() { return recorder.changes.size(); }
void EndRecord() { recorder.on = false; }

void Replay(size_t changes, const Lost& lost, const std::string& to) {
  Tree tree;
  for (size_t i = 0; i < changes; ++i) {
    const Change& change = recorder.changes[i];
    const bool bytes = change.kind == Change::kBytes || change.kind == Change::kSize;
    if ((bytes ? lost.bytes : lost.names) && !IsSynced(i, changes)) continue;
    tree.Apply(change, recorder.is_folder.at(change.node));
  }
  std::filesystem::remove_all(to);
  tree.Write(0, to);
}

}  // namespace pp

extern "C" {

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return pp::Opened(AT_FDCWD, path, flags, mode);
}

int openat(int from, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return pp::Opened(from, path, flags, mode);
}

int close(int descriptor) {
  pp::recorder.open.erase(descriptor);
  return static_cast<int>(syscall(SYS_close, descriptor));
}

ssize_t write(int descriptor, const void* data, size_t bytes) {
  const ssize_t written = syscall(SYS_write, descriptor, data, bytes);
  pp::Wrote(descriptor, data, written, -1);
  return written;
}

ssize_t pwrite(int descriptor, const void* data, size_t bytes, off_t offset) {
  const ssize_t written = syscall(SYS_pwrite64, descriptor, data, bytes, offset);
  pp::Wrote(descriptor, data, written, offset);
  return written;
}

int fsync(int descriptor) {
  const auto result = static_cast<int>(syscall(SYS_fsync, descriptor));
  const auto at = pp::recorder.open.find(descriptor);
  if (pp::recorder.on && result == 0 && at != pp::recorder.open.end())
    pp::Add({.kind = pp::Change::kSync, .node = at->second.node});
  return result;
}

int ftruncate(int descriptor, off_t size) noexcept {
  const auto result = static_cast<int>(syscall(SYS_ftruncate, descriptor, size));
  const auto at = pp::recorder.open.find(descriptor);
  if (pp::recorder.on && result == 0 && at != pp::recorder.open.end())
    pp::Add({.kind = pp::Change::kSize, .node = at->second.node, .offset = size});
  return result;
}

int posix_fallocate(int descriptor, off_t offset, off_t bytes) {
  if (syscall(SYS_fallocate, descriptor, 0, offset, bytes) != 0 &&
      ftruncate(descriptor, offset + bytes) != 0)
    return errno;
  const auto at = pp::recorder.open.find(descriptor);
  if (pp::recorder.on && at != pp::recorder.open.end())
    pp::Add({.kind = pp::Change::kSize, .node = at->second.node, .offset = offset + bytes});
  return 0;
}

int rename(const char* from, const char* to) noexcept {
  const pp::Spot old = pp::Find(AT_FDCWD, from), changed = pp::Find(AT_FDCWD, to);
  const auto result = static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
  PP_CHECK(old.inside == changed.inside);
  if (result == 0 && old.inside)
    pp::Add({.kind = pp::Change::kRename,
             .node = old.node,
             .folder = old.folder,
             .name = old.name,
             .to_folder = changed.folder,
             .to_name = changed.name});
  return result;
}

int mkdir(const char* path, mode_t mode) noexcept {
  const pp::Spot spot = pp::Find(AT_FDCWD, path);
  const auto result = static_cast<int>(syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  if (result == 0 && spot.inside) pp::Made(spot, true);
  return result;
}

int unlink(const char* path) noexcept { return pp::Removed(AT_FDCWD, path, 0); }
int rmdir(const char* path) noexcept { return pp::Removed(AT_FDCWD, path, AT_REMOVEDIR); }
int unlinkat(int from, const char* path, int flags) noexcept {
  return pp::Removed(from, path, flags);
}

int remove(const char* path) noexcept {
  if (unlink(path) == 0) return 0;
  return errno == EISDIR || errno == EPERM ? rmdir(path) : -1;
}

}  // extern "C"
