<?php
// predis with its default settings.
require __DIR__ . '/scenario.php';
require 'Predis/autoload.php';

[, $scenario, $address] = $argv;

function plain(mixed $value): mixed
{
    return match (true) {
        $value instanceof Predis\Response\Status => $value->getPayload(),
        $value instanceof Predis\Response\Error => 'error: ' . $value->getMessage(),
        is_array($value) => array_map('plain', $value),
        default => $value,
    };
}

function single(Predis\Client $client, Predis\Client $other): array
{
    return [
        'set' => fn () => $client->set('app:a', every_byte()),
        'get' => fn () => bin2hex($client->get('app:a')),
        'missing' => fn () => $client->get('app:missing'),
        'large' => fn () => [$client->set('app:large', str_repeat('x', LARGE)), strlen($client->get('app:large'))],
        'hash' => fn () => [$client->hmset('app:h', ['f' => '1', 'g' => '2']), $client->hgetall('app:h')],
        'wrong type' => fn () => $client->lpush('app:h', ['x']),
        'pipeline' => fn () => $client->pipeline(fn ($pipe) => $pipe->incr('app:n')->get('app:n')),
        'multi' => fn () => $client->transaction(fn ($multi) => $multi->incr('app:n')->hgetall('app:h')),
        'watch' => fn () => $client->transaction(['watch' => 'app:n', 'cas' => true], function ($multi) use ($other) {
            $other->set('app:n', '9');
            $multi->multi();
            $multi->set('app:n', 'mine');
        }),
        'script' => fn () => $client->eval(SCRIPT, 1, 'app:n', 'argument'),
        'scan' => function () use ($client) {
            $found = iterator_to_array(new Predis\Collection\Iterator\Keyspace($client, 'app:*'), false);
            sort($found);
            return $found;
        },
        'blocked' => fn () => $client->blpop(['app:empty'], 1),
        'database' => fn () => [$client->select(1), $client->get('app:n'), $client->select(0)],
        'messages' => function () use ($client, $other) {
            $heard = [];
            $loop = $other->pubSubLoop(['subscribe' => 'app:news', 'psubscribe' => 'app:n*']);
            foreach ($loop as $message) {
                $heard[] = (array) $message;
                if (count($heard) === 2) {
                    $client->publish('app:news', 'hello');
                }
                if (count($heard) === 4) {
                    $loop->stop(true);
                }
            }
            return $heard;
        },
    ];
}

function refused(Predis\Client $client): array
{
    $number = $client->client('ID');
    return [
        'read' => fn () => $client->get('app:a'),
        'write' => fn () => $client->set('app:a', 'x'),
        'multi' => fn () => $client->transaction(fn ($multi) => $multi->get('app:a')->set('app:a', 'x')),
        'read again' => fn () => $client->get('app:a'),
        'same connection' => fn () => $client->client('ID') === $number,
    ];
}

function cluster(Predis\Client $client): array
{
    return [
        'moves' => fn () => $client->get('app:{moves}'),
        'set' => fn () => array_map(fn ($number) => $client->set("app:$number", $number), range(0, 29)),
        'get' => fn () => array_map(fn ($number) => $client->get("app:$number"), range(0, 30)),
        'script' => fn () => $client->eval(SCRIPT, 1, 'app:1', 'argument'),
        'outside' => fn () => $client->set('outside:1', 'x'),
        'after' => fn () => $client->get('app:1'),
    ];
}

function sentinel(Predis\Client $client): array
{
    return [
        'set' => fn () => $client->set('app:a', '2'),
        'get' => fn () => $client->get('app:a'),
        'script' => fn () => $client->eval(SCRIPT, 1, 'app:a', 'argument'),
    ];
}

play(match ($scenario) {
    'single' => single(new Predis\Client("tcp://$address"), new Predis\Client("tcp://$address")),
    'refused' => refused(new Predis\Client("tcp://$address")),
    'cluster' => cluster(new Predis\Client(["tcp://$address"], ['cluster' => 'redis'])),
    'sentinel' => sentinel(new Predis\Client(["tcp://$address"], ['replication' => 'sentinel', 'service' => 'main'])),
}, 'plain');
