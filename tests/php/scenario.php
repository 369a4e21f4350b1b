<?php
// What the scripts of both libraries share. Usage: php SCRIPT.php SCENARIO HOST:PORT. One JSON object on stdout:
// what each step has returned, or the error that it has ended with.

const SCRIPT = "return {KEYS[1], ARGV[1], redis.call('GET', KEYS[1])}";
const LARGE = 2_000_000;  // bytes; keyfence sends a request of this size on in pieces

// What predis 1.1 does is deprecated in PHP 8. All else that PHP has to say fails the scenario.
set_error_handler(function (int $level, string $text): bool {
    if ($level & (E_DEPRECATED | E_USER_DEPRECATED)) {
        return true;
    }
    throw new ErrorException($text);
});

function every_byte(): string
{
    return implode('', array_map('chr', range(0, 255)));
}

// Runs each step. $plain turns a library's own values into PHP's.
function play(array $steps, ?callable $plain = null): void
{
    $seen = [];
    foreach ($steps as $name => $step) {
        try {
            $seen[$name] = $plain === null ? $step() : $plain($step());
        } catch (RedisException | RedisClusterException | Predis\PredisException $error) {
            $seen[$name] = 'error: ' . $error->getMessage();
        }
    }
    echo json_encode($seen, JSON_THROW_ON_ERROR), "\n";
}
