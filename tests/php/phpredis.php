<?php
// phpredis with its default settings.
require __DIR__ . '/scenario.php';

[, $scenario, $address] = $argv;
[$host, $port] = explode(':', $address);
$port = (int) $port;

function connected(string $host, int $port): Redis
{
    $client = new Redis();
    $client->connect($host, $port);
    return $client;
}

// phpredis returns false for some errors, and keeps their text.
function error_of(Redis|RedisCluster $client): ?string
{
    $error = $client->getLastError();
    $client->clearLastError();
    return $error;
}

function single(Redis $client, Redis $other): array
{
    return [
        'set' => fn () => $client->set('app:a', every_byte()),
        'get' => fn () => bin2hex($client->get('app:a')),
        'missing' => fn () => $client->get('app:missing'),
        'large' => fn () => [$client->set('app:large', str_repeat('x', LARGE)), strlen($client->get('app:large'))],
        'hash' => fn () => [$client->hMSet('app:h', ['f' => '1', 'g' => '2']), $client->hGetAll('app:h')],
        'wrong type' => fn () => [$client->lPush('app:h', 'x'), error_of($client)],
        'pipeline' => fn () => $client->pipeline()->incr('app:n')->lPush('app:h', 'x')->get('app:n')->exec(),
        'multi' => fn () => $client->multi()->incr('app:n')->hGetAll('app:h')->exec(),
        'watch' => function () use ($client, $other) {
            $client->watch('app:n');
            $other->set('app:n', '9');
            return $client->multi()->set('app:n', 'mine')->exec();
        },
        'script' => fn () => $client->eval(SCRIPT, ['app:n', 'argument'], 1),
        'loaded' => fn () => $client->evalSha($client->script('load', SCRIPT), ['app:n', 'argument'], 1),
        'scan' => function () use ($client) {
            $found = [];
            $cursor = null;
            $client->setOption(Redis::OPT_SCAN, Redis::SCAN_RETRY);
            while ($keys = $client->scan($cursor, 'app:*')) {
                $found = [...$found, ...$keys];
            }
            sort($found);
            return $found;
        },
        'blocked' => fn () => $client->blPop(['app:empty'], 1),
        'stream' => fn () => [
            $client->xAdd('app:x', '1-1', ['f' => 'v']),
            $client->xGroup('CREATE', 'app:x', 'g', '0'),
            $client->xReadGroup('g', 'c', ['app:x' => '>']),
            $client->xAck('app:x', 'g', ['1-1']),
        ],
        'database' => fn () => [$client->select(1), $client->get('app:n'), $client->select(0)],
        'timeout' => function () use ($other) {
            $other->setOption(Redis::OPT_READ_TIMEOUT, 0.1);
            try {
                return $other->blPop(['app:empty'], 1);
            } catch (RedisException) {
                return $other->get('app:n');  // on a new connection
            }
        },
    ];
}

function refused(Redis $client): array
{
    $number = $client->client('id');
    return [
        'read' => fn () => $client->get('app:a'),
        'write' => fn () => $client->set('app:a', 'x'),
        'pipeline' => fn () => $client->pipeline()->get('app:a')->set('app:a', 'x')->exec(),
        'multi' => fn () => $client->multi()->get('app:a')->set('app:a', 'x'),
        'discard' => fn () => $client->discard(),
        'read again' => fn () => $client->get('app:a'),
        'same connection' => fn () => $client->client('id') === $number,
    ];
}

function cluster(RedisCluster $client): array
{
    return [
        'moves' => fn () => $client->get('app:{moves}'),
        'set' => fn () => array_map(fn ($number) => $client->set("app:$number", $number), range(0, 29)),
        'mget' => fn () => $client->mget(array_map(fn ($number) => "app:$number", range(0, 30))),
        'multi' => fn () => $client->multi()->incr('app:n')->get('app:n')->exec(),
        'script' => fn () => $client->eval(SCRIPT, ['app:1', 'argument'], 1),
        'masters' => fn () => count($client->_masters()),
        'outside' => fn () => array_map(fn ($number) => $client->set("outside:$number", 'x'), range(0, 9)),
        'after' => fn () => $client->get('app:1'),
    ];
}

function sentinel(string $host, int $port): array
{
    $sentinel = new RedisSentinel($host, $port);
    return [
        'fields' => fn () => array_keys($sentinel->master('main')),
        'masters' => fn () => array_column($sentinel->masters(), 'name'),
        'unknown' => fn () => $sentinel->getMasterAddrByName('other'),
        'quorum' => fn () => $sentinel->ckquorum('main'),
        'set' => fn () => connected(...$sentinel->getMasterAddrByName('main'))->set('app:a', '1'),
    ];
}

play(match ($scenario) {
    'single' => single(connected($host, $port), connected($host, $port)),
    'refused' => refused(connected($host, $port)),
    'cluster' => cluster(new RedisCluster(null, [$address])),
    'sentinel' => sentinel($host, $port),
});
