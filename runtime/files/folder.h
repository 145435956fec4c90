// Folders that a run writes, and nobody else.
#pragma once

#include <string>

#include "schema/base/disk.h"
#include "schema/base/status.h"

namespace pp {

// Locks an open file or folder for this process, until it is closed. False: another run has it. A
// file system without locks lets everybody.
bool Lock(int descriptor);

// Makes a folder and those above it, unless they exist. Invalid: it cannot be made.
Status MakeFolder(const std::string& path);
// Makes the folder in which `path` shall be.
Status MakeParent(const std::string& path);

// Whether something is mounted there, so that no other folder can get this name.
bool IsMountPoint(const std::string& path);

// Syncs an open file or folder to the disk. Returns 0, or an errno.
int Sync(int descriptor);

// Renames a folder: to `to`, or, where something has this name, to the first free one of `to`-2,
// `to`-3 and so on, which is in *named. Returns 0, or an errno.
int Rename(const std::string& from, const std::string& to, std::string* named);

// What a run has written there, for reading. Invalid: it is missing. Failed: it is there and cannot
// be opened, which says nothing about its contents.
Result<InputFile> OpenPart(const std::string& path, const std::string& right);

// Makes the names in a folder last. Failed: the disk is broken.
Status SyncFolder(const std::string& path);
// Of the folder that has this name.
Status SyncParent(const std::string& path);

}  // namespace pp
