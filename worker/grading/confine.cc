#include "worker/grading/confine.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>

namespace sft::grading {
namespace {

// Rights of a later Landlock than the header may know.
constexpr uint64_t kRefer = uint64_t{1} << 13, kTruncate = uint64_t{1} << 14;
constexpr int kReferSince = 2, kTruncateSince = 3;
constexpr uint64_t kFileReads = LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_READ_FILE;
constexpr uint64_t kReads = kFileReads | LANDLOCK_ACCESS_FS_READ_DIR;
constexpr uint64_t kWrites = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                             LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                             LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
                             LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
                             LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"};

uint64_t AllRights() {
  const int version = LandlockVersion();
  return kReads | kWrites | (version >= kReferSince ? kRefer : 0) |
         (version >= kTruncateSince ? kTruncate : 0);
}

// A path that is not there needs no rule.
bool Allow(int ruleset, const char* path, uint64_t rights) {
  const int fd = open(path, O_PATH | O_CLOEXEC);
  if (fd < 0) return true;
  struct stat info {};
  const bool folder = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  landlock_path_beneath_attr rule{};
  rule.allowed_access = folder ? rights : rights & (kFileReads | LANDLOCK_ACCESS_FS_WRITE_FILE);
  rule.parent_fd = fd;
  const bool added =
      syscall(__NR_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
  close(fd);
  return added;
}

bool WriteTo(const char* path, const char* text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text, strlen(text)) == static_cast<ssize_t>(strlen(text));
  const int error = errno;
  close(fd);
  errno = error;
  return written;
}

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64, kFirstForeign = 0x40000000;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64, kFirstForeign = UINT32_MAX;
#else
#error "which calls programs that grade may make is not known for this architecture"
#endif

}  // namespace

int LandlockVersion() {
  return static_cast<int>(syscall(__NR_landlock_create_ruleset, nullptr, size_t{0},
                                  uint32_t{LANDLOCK_CREATE_RULESET_VERSION}));
}

bool OfferToOomKiller() { return WriteTo("/proc/self/oom_score_adj", "1000"); }

bool TakeUser(const Sight& sight) {
  return WriteTo("/proc/self/setgroups", "deny") && WriteTo("/proc/self/uid_map", sight.user_map) &&
         WriteTo("/proc/self/gid_map", sight.group_map);
}

bool MountFolder(const Sight& sight) {
  // What is mounted here stays in this namespace.
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  mount_attr read_only{};
  read_only.attr_set = MOUNT_ATTR_RDONLY;
  return mount_setattr(AT_FDCWD, "/", AT_RECURSIVE, &read_only, sizeof(read_only)) == 0 &&
         mount("tmpfs", sight.folder, "tmpfs", MS_NOSUID | MS_NODEV, sight.folder_options) == 0 &&
         chdir(sight.folder) == 0;
}

bool LimitResources(const Limits& limits) {
  const rlimit none{0, 0}, files{64, 64};
  return setrlimit(RLIMIT_CORE, &none) == 0 && setrlimit(RLIMIT_NOFILE, &files) == 0 &&
         setrlimit(RLIMIT_AS, &limits.memory) == 0 && setrlimit(RLIMIT_FSIZE, &limits.file) == 0 &&
         setrlimit(RLIMIT_CPU, &limits.cpu) == 0 && setrlimit(RLIMIT_NPROC, &limits.processes) == 0;
}

bool RestrictFiles(const Sight& sight) {
  landlock_ruleset_attr rules{};
  rules.handled_access_fs = AllRights();
  const int ruleset =
      static_cast<int>(syscall(__NR_landlock_create_ruleset, &rules, sizeof(rules), uint32_t{0}));
  if (ruleset < 0) return false;
  bool added = Allow(ruleset, sight.folder, AllRights());
  for (const char* path : kDevices) {
    added =
        added && Allow(ruleset, path, LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE);
  }
  for (size_t i = 0; i < sight.readable_count; ++i) {
    added = added && Allow(ruleset, sight.readable[i], kReads);
  }
  const bool done = added && syscall(__NR_landlock_restrict_self, ruleset, 0) == 0;
  const int error = errno;
  close(ruleset);
  errno = error;
  return done;
}

// Landlock keeps nobody from the Unix sockets of other processes, by which shims and jobs that
// serve are asked: no socket can be made, nor a ring by which the kernel would make one. Key rings
// belong to the user and not to a namespace. PR_SET_PDEATHSIG would let the program outlive a rank
// that is killed.
bool RestrictCalls() {
  const auto load = [](size_t offset) {
    return sock_filter(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset)));
  };
  const auto refuse_if = [](uint16_t how, uint32_t value) {
    return sock_filter(BPF_JUMP(static_cast<uint16_t>(BPF_JMP | BPF_K | how), value, 0, 1));
  };
  const sock_filter refuse = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES);
  const sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_filter kill = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  sock_filter filter[] = {
      load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      kill,
      load(offsetof(seccomp_data, nr)),
      refuse_if(BPF_JGE, kFirstForeign),
      refuse,
      refuse_if(BPF_JEQ, __NR_socket),
      refuse,
      refuse_if(BPF_JEQ, __NR_io_uring_setup),
      refuse,
      refuse_if(BPF_JEQ, __NR_add_key),
      refuse,
      refuse_if(BPF_JEQ, __NR_request_key),
      refuse,
      refuse_if(BPF_JEQ, __NR_keyctl),
      refuse,
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_prctl, 1, 0),
      allow,
      // The kernel reads this argument as an int: its lower half.
      load(offsetof(seccomp_data, args)),
      refuse_if(BPF_JEQ, PR_SET_PDEATHSIG),
      refuse,
      allow,
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace sft::grading
