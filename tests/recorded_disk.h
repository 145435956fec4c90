// Records what this process does to a folder's files, and shows what a disk may have of it after
// the machine has crashed at any instant. Whoever links this has its open, write, fsync, rename and
// their relatives.
//
// A crash keeps at least what was synced: a file's bytes by its own fsync, a name by the fsync of
// the folder that it is in. Of the rest it keeps all, none, or one kind.
#pragma once

#include <cstddef>
#include <string>

namespace pp {

// From now on. One folder at a time, which exists and is empty but for what Keep copies there.
void Record(const std::string& folder);
// The changes so far.
size_t Recorded();
// No more.
void EndRecord();

struct Lost {
  bool bytes = false;  // those of files that were not synced
  bool names = false;  // those of folders that were not synced
};
// Makes `to` what the recorded folder may be after a crash behind the first `changes` changes.
void Replay(size_t changes, const Lost& lost, const std::string& to);

}  // namespace pp
