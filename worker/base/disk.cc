#include "worker/base/disk.h"

namespace sft::worker {

v1::NodeDisk MeasureDisk(const NodeSetup& setup) {
  v1::NodeDisk disk;
  const absl::StatusOr<io::DiskSpace> space = io::SpaceOf(setup.data_dir);
  if (!space.ok()) return disk;
  disk.set_total_bytes(space->total);
  disk.set_free_bytes(space->free);
  disk.set_low_bytes(setup.disk_marks.low.Of(*space));
  disk.set_full_bytes(setup.disk_marks.full.Of(*space));
  disk.set_level(static_cast<v1::NodeDisk::Level>(io::LevelOf(*space, setup.disk_marks)));
  return disk;
}

}  // namespace sft::worker
