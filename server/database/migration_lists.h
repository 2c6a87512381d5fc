#pragma once

#include <span>

#include "server/database/migrations.h"

// The parts of the list that Migrations gives as one.

namespace sft::server {

std::span<const Migration> MigrationsTo22();
std::span<const Migration> MigrationsFrom23();

}  // namespace sft::server
