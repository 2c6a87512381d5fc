#include "worker/rank/build.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "common/base/version.h"

namespace sft::rank {
namespace {

constexpr size_t kBytesShown = 8;

size_t Padded(size_t size) { return (size + 3) & ~size_t{3}; }

// The id among the notes of one segment, in hexadecimal; empty: it is not there.
std::string IdIn(const char* notes, size_t size) {
  std::string id;
  for (size_t at = 0; at + sizeof(ElfW(Nhdr)) <= size;) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes + at, sizeof note);
    const size_t name = at + sizeof note, value = name + Padded(note.n_namesz);
    if (value + note.n_descsz > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + name, "GNU", 4) == 0) {
      for (size_t i = 0; i < std::min<size_t>(note.n_descsz, kBytesShown); ++i) {
        id += fmt::format("{:02x}", static_cast<uint8_t>(notes[value + i]));
      }
      return id;
    }
    at = value + Padded(note.n_descsz);
  }
  return id;
}

// Called for each loaded object; the program itself is the first.
int TakeId(dl_phdr_info* object, size_t, void* out) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = object->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const char*>(object->dlpi_addr + segment.p_vaddr);
    std::string& id = *static_cast<std::string*>(out);
    id = IdIn(notes, segment.p_memsz);
    if (!id.empty()) break;
  }
  return 1;
}

}  // namespace

std::string BuildText() {
  std::string id;
  dl_iterate_phdr(&TakeId, &id);
  return id.empty() ? std::string(kVersion) : fmt::format("{} (build {})", kVersion, id);
}

}  // namespace sft::rank
