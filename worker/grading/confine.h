#pragma once

#include <sched.h>
#include <sys/resource.h>

#include <cstddef>

// What a process takes from itself before it becomes a program that grades. All of it runs between
// clone and exec in a copy of a process with many threads: nothing here allocates.

namespace sft::grading {

// The namespaces that the process is born into, as their first process: its end is the end of all
// others in them, and killing it is killing all.
inline constexpr int kNamespaces =
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC;

// The limits that the process gets, soft and hard.
struct Limits {
  rlimit memory{}, processes{}, file{}, cpu{};
};

// What the process may see of the files; all texts end with a zero.
struct Sight {
  const char* folder = nullptr;           // becomes an empty file system in memory
  const char* folder_options = nullptr;   // of tmpfs: "size=...,nr_inodes=...,mode=0700"
  const char* const* readable = nullptr;  // files and folders that it may read and run
  size_t readable_count = 0;
  const char* user_map = nullptr;   // "65534 UID 1": a user without a name is this one
  const char* group_map = nullptr;  // "65534 GID 1"
};

// The version of the kernel's Landlock; below 1: there is none.
int LandlockVersion();

// Each returns false with errno where the kernel does not do it.

// Makes the process the first that the kernel ends when memory is short.
bool OfferToOomKiller();
// Takes the user's number in the new namespace of users, which files that it makes need.
bool TakeUser(const Sight& sight);
// Makes every mounted file system read-only, for chmod, utimes, chown and setxattr too, and mounts
// an empty one in memory at the folder.
bool MountFolder(const Sight& sight);
bool LimitResources(const Limits& limits);
// Landlock: nothing else is read, run or written.
bool RestrictFiles(const Sight& sight);
// Refuses sockets, key rings, and leave to outlive the process that started this one.
bool RestrictCalls();

}  // namespace sft::grading
